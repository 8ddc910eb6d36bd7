"""Assertions that a registry is complete. Their messages name the file to edit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def place(path: str, name: str = "") -> str:
    """`path`, or "NAME in PATH", as the text of a message; AssertionError where it does not exist,
    so that no message names a file or a table that was renamed.
    """
    file = ROOT / path
    assert file.exists(), f"a message of a test names {path}, which does not exist"
    if not name:
        return path
    assert re.search(rf"\b{re.escape(name)}\b", file.read_text(encoding="utf-8")), (
        f"a message of a test names {name}, which is not in {path}"
    )
    return f"{name} in {path}"


def require_files(missing: Iterable[str], file: str, content: str) -> None:
    """Fail where there are `missing` names, and say which file to add for each, with what in it.

    `file` and `content` have NAME where the name stands, and MODULE where it has no dashes.
    """
    told = [
        text.replace("NAME", name).replace("MODULE", name.replace("-", "_"))
        for name in sorted(missing)
        for text in [f"add {file} with {content}"]
    ]
    assert not told, "; ".join(told)


def require_members(has: Iterable[str], wanted: Iterable[str], where: str) -> None:
    """Fail where names that are `wanted` are missing, and say to add them to `where` (`place`)."""
    missing = sorted(set(wanted) - set(has))
    assert not missing, f"add {', '.join(missing)} to {where}"


def require_same_members(has: Iterable[str], wanted: Iterable[str], where: str) -> None:
    """As `require_members`; fail for further names too, and say to remove them."""
    has, wanted = set(has), set(wanted)
    require_members(has, wanted, where)
    further = sorted(has - wanted)
    assert not further, f"remove {', '.join(further)} from {where}: no member has the name"
