"""Each module that a docstring or comment names exists, and defines what is named of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "shardwright"
_DOTTED: Final = re.compile(r"(?<!`)`((?:shardwright\.)?[a-z_]+(?:\.\w+)+)`")


@cache
def _text(path: Path) -> str:
    """Text of a file."""
    return path.read_text(encoding="utf-8")


def _resolves(parts: list[str]) -> bool:
    """Whether names below the package lead to a module, a word of that module, or a file."""
    folder = SOURCE
    if (folder / ".".join(parts)).is_file():
        return True
    for number, name in enumerate(parts):
        if (folder / name).is_dir():
            folder = folder / name
            continue
        module = folder / f"{name}.py"
        defined = parts[number + 1 :] if module.is_file() else parts[number:]
        text = _text(module if module.is_file() else folder / "__init__.py")
        return not defined or re.search(rf"\b{re.escape(defined[0])}\b", text) is not None
    return True


def references(text: str) -> Iterator[str]:
    """Dotted names in single backticks that begin with a package or module of the top level."""
    tops = {path.stem for path in SOURCE.iterdir()}
    for match in _DOTTED.finditer(text):
        if match[1].removeprefix("shardwright.").split(".")[0] in tops:
            yield match[1]


def test_named_modules_exist() -> None:
    """No docstring or comment names a module that does not exist."""
    rules = _text(ROOT / "docs" / "errors.md")
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in references(_text(path))
        if f"`{name}`" not in rules and not _resolves(name.removeprefix("shardwright.").split("."))
    ]
    assert not missing, "\n".join(missing)


def test_unknown_modules_are_noticed() -> None:
    """A module that does not exist, and a name that its module lacks, do not resolve."""
    assert list(references("see `cost.tiles` and `numpy.array`")) == ["cost.tiles"]
    assert not _resolves(["cost", "tiles"])
    assert not _resolves(["errors", "NoSuchError"])
    assert _resolves(["errors", "UsageError"])
