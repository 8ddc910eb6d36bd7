"""Move modules into the packages that tools/rooms.csv names, and rewrite all that names their paths
(decision 27).

    python tools/rooms.py check         # the table is complete, and no two packages import each
                                        # other in a circle
    python tools/rooms.py graph cost    # who imports whom among the modules of a folder
    python tools/rooms.py move          # all moves, on a clean tree; --only cost for the rows of
                                        # one folder
    python tools/rooms.py verify        # every module compiles and is imported, no name is left
                                        # that has moved

`tools/rooms.csv` has a row for each module: `old` and `new`, both dotted names below `shardwright`.
Rewritten are imports, absolute and relative, dotted names and paths in any text of the repository
that git knows (code, contracts of pyproject.toml, docs, tools, tests, kernel_signatures.json), and
names of modules after `from PACKAGE import`. Tests that mirror a module move with it. The file and
its table are removed when the moves are done.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import csv
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = ROOT / "tools" / "rooms.csv"
PACKAGE: Final = "shardwright"
SOURCE: Final = ROOT / "src" / PACKAGE
TEXTS: Final = frozenset(
    {
        ".py",
        ".md",
        ".toml",
        ".json",
        ".txt",
        ".csv",
        ".yml",
        ".yaml",
        ".cfg",
        ".c",
        ".h",
        ".in",
        ".tsv",
        "",
    }
)
"""Endings of files in which names of modules are rewritten."""
DOTTED: Final = re.compile(r"(?<![\w./-])(?:shardwright|tests)(?:\.\w+)+")
PATH: Final = re.compile(r"(?<![\w./-])((?:\.\./)*)([\w-]+(?:/[\w.-]+)*\.py)\b")
BARE: Final = re.compile(r"(?<![\w./-])[a-z_]+(?:/[a-z0-9_]+)+(?![\w/-]|\.\w)")
"""Dotted names; paths with what leads up from a page's folder; and paths of modules as pages write
them, `cost/tiles`."""
UNTOUCHED: Final = (
    "tools/rooms",
    "CHANGELOG.md",
    "changelog.d/",
    "benchmarks/published/",
    "tests/lock/",
    "docs/decisions/0027",
)
"""Files that say what was, or are data."""


def say(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(f"{line}\n")


def read_table() -> dict[str, str]:
    """Old dotted names and new ones, with the package in front."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    table = {f"{PACKAGE}.{row['old']}": f"{PACKAGE}.{row['new']}" for row in rows}
    if len(table) < len(rows) or len(set(table.values())) < len(rows):
        raise SystemExit("a module stands twice in tools/rooms.csv")
    return table


def modules() -> dict[str, Path]:
    """All modules of the package by dotted name; a package is named as itself."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path, known: Iterable[str]) -> set[str]:
    """Modules of the package that a module imports when it runs; those for types alone are left
    out.
    """
    known = set(known)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base
                for alias in node.names
            }
    return (found & known) - {name}


def graph(names: Mapping[str, Path]) -> dict[str, set[str]]:
    """Who imports whom."""
    return {name: imports_of(name, path, names) for name, path in names.items()}


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            place = stack.index(node)
            group = stack[place:]
            del stack[place:]
            if len(group) > 1:
                found.append(group)

    sys.setrecursionlimit(10_000)
    for node in sorted(edges):
        if node not in number:
            visit(node)
    return found


def sibling_edges(edges: Mapping[str, set[str]]) -> dict[str, dict[tuple[str, str], list[str]]]:
    """For every package, arrows between its members, each with the imports behind it: what
    import-linter keeps free of circles.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for source, targets in edges.items():
        for target in targets:
            left, right = source.split("."), target.split(".")
            shared = 0
            while shared < min(len(left), len(right)) and left[shared] == right[shared]:
                shared += 1
            if shared < len(left) and shared < len(right):
                found[".".join(left[:shared])][left[shared], right[shared]].append(
                    f"{source} -> {target}"
                )
    return found


def check(table: Mapping[str, str]) -> list[str]:
    """What is wrong with the table: names that do not exist or collide, circles among the new
    packages, folders that stay large.
    """
    names = modules()
    wrong = [f"no module {old}" for old in table if old not in names]
    moved = {table.get(name, name) for name in names}
    if len(moved) < len(names):
        wrong.append("two modules get one name")
    for name in sorted(moved):
        if name in set(table.values()) and name.rpartition(".")[0] in moved - packages_of(
            names, table
        ):
            wrong.append(f"{name.rpartition('.')[0]} is a module and cannot hold {name}")
    edges = graph(names)
    after = {
        table.get(name, name): {table.get(other, other) for other in targets}
        for name, targets in edges.items()
    }
    for package, arrows in sorted(sibling_edges(after).items()):
        siblings: dict[str, set[str]] = defaultdict(set)
        for source, target in arrows:
            siblings[source].add(target)
        for group in circles(siblings):
            wrong.append(f"circle in {package}: {', '.join(group)}")
            for source, target in sorted(arrows):
                if source in group and target in group:
                    wrong.append(
                        f"    {source} -> {target}: {'; '.join(sorted(arrows[source, target])[:3])}"
                    )
    counts: dict[str, int] = defaultdict(int)
    for name in moved:
        if name not in packages_of(names, table):
            counts[name.rpartition(".")[0]] += 1
    wrong += [
        f"note: {count} modules in {package}"
        for package, count in sorted(counts.items())
        if count > 20
    ]
    return wrong


def packages_of(names: Mapping[str, Path], table: Mapping[str, str]) -> set[str]:
    """Dotted names of packages behind the moves."""
    kept = {name for name, path in names.items() if path.name == "__init__.py"}
    made = {new.rpartition(".")[0] for new in table.values()}
    return kept | made | {name.rpartition(".")[0] for name in made}


def print_graph(folder: str) -> None:
    """Print what each module of a folder imports from that folder, and how many modules of it
    import that one.
    """
    names = modules()
    base = f"{PACKAGE}.{folder.strip('/').replace('/', '.')}"
    edges = graph(names)
    inside = sorted(name for name in names if name.startswith(f"{base}."))
    for name in inside:
        targets = sorted(other.removeprefix(f"{base}.") for other in edges[name] if other in inside)
        count = sum(name in edges[other] for other in inside)
        say(f"{name.removeprefix(base + '.')} ({count}): {' '.join(targets)}")


def tracked() -> list[Path]:
    """Files that git knows, and that name modules."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [
        ROOT / name
        for name in listed.split("\0")
        if name
        and not name.startswith(UNTOUCHED)
        and Path(name).suffix in TEXTS
        and (ROOT / name).is_file()
    ]


def test_moves(table: Mapping[str, str]) -> dict[str, str]:
    """Tests that mirror a module (tests/cost/test_tiles.py of cost/tiles.py), with where they go:
    paths below tests.
    """
    found = {}
    for old, new in table.items():
        left, right = old.split(".")[1:], new.split(".")[1:]
        path = Path(*left[:-1], f"test_{left[-1]}.py")
        if (ROOT / "tests" / path).is_file():
            found[str(path)] = str(Path(*right[:-1], f"test_{right[-1]}.py"))
    return found


class Names:
    """Rewrites names of modules in a text."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table
        self.tests = {f"tests/{old}": f"tests/{new}" for old, new in test_moves(table).items()}
        self.dotted = dict(table) | {_dotted(old): _dotted(new) for old, new in self.tests.items()}
        paths = dict(self.tests)
        for old, new in table.items():
            left, right = old.split("."), new.split(".")
            paths[f"{'/'.join(left)}.py"] = f"{'/'.join(right)}.py"
            paths[f"src/{'/'.join(left)}.py"] = f"src/{'/'.join(right)}.py"
            # Below the package, as docs write them: cost/tiles.py.
            paths[f"{'/'.join(left[1:])}.py"] = f"{'/'.join(right[1:])}.py"
        for old, new in list(self.tests.items()):
            paths[old.removeprefix("tests/")] = new.removeprefix("tests/")
        self.paths = paths

    def in_text(self, text: str) -> str:
        """The text with new names; `shardwright.cost.tiles` and `cost/tiles.py` are names wherever
        they stand.
        """
        text = DOTTED.sub(self._dotted_name, text)
        return PATH.sub(lambda found: found[1] + self.paths.get(found[2], found[2]), text)

    def in_page(self, text: str) -> str:
        """A page with new names, modules without their ending among them."""
        bare = {old.removesuffix(".py"): new.removesuffix(".py") for old, new in self.paths.items()}
        return BARE.sub(lambda found: bare.get(found[0], found[0]), self.in_text(text))

    def _dotted_name(self, found: re.Match[str]) -> str:
        parts = found[0].split(".")
        for length in range(len(parts), 1, -1):
            if new := self.dotted.get(".".join(parts[:length])):
                return ".".join([new, *parts[length:]])
        return found[0]

    def in_code(self, text: str, name: str, is_package: bool) -> str:
        """Python with new names, and with ``from PACKAGE import MODULE`` and relative imports taken
        apart by module.
        """
        lines = text.splitlines(keepends=True)
        done: list[str] = []
        for node in reversed(
            [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        ):
            written = self._import(node, name, is_package)
            if written is not None:
                first, last = node.lineno - 1, node.end_lineno or node.lineno
                indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
                comment = re.search(r"#.*", lines[last - 1][node.end_col_offset or 0 :])
                ending = f"  {comment[0].rstrip()}\n" if comment else "\n"
                done.append("\n".join(f"{indent}{line}" for line in written) + ending)
                # What is new by now is no old name, even if it reads like one: it is put in at the
                # end.
                lines[first:last] = [f"\0{len(done) - 1}\0"]
        return re.sub(
            "\0([0-9]+)\0", lambda found: done[int(found[1])], self.in_text("".join(lines))
        )

    def _import(self, node: ast.ImportFrom, name: str, is_package: bool) -> list[str] | None:
        base = node.module or ""
        if node.level:
            parts = name.split(".") if is_package else name.split(".")[:-1]
            base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
        moved = {alias.name: self.dotted.get(f"{base}.{alias.name}") for alias in node.names}
        if not node.level and not any(moved.values()):
            return None
        lines: dict[str, list[str]] = defaultdict(list)
        for alias in node.names:
            new = moved[alias.name]
            package, _, module = (
                new.rpartition(".") if new else (self.dotted.get(base, base), "", alias.name)
            )
            # A module that has another name is called as before: the code below it does not change.
            called = alias.asname or (alias.name if module != alias.name else None)
            lines[package].append(
                f"{module} as {called}" if called and called != module else module
            )
        return [f"from {package} import {', '.join(found)}" for package, found in lines.items()]


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def move(table: Mapping[str, str], made: Mapping[str, str]) -> None:
    """Rewrite all texts, then move the files.

    Args:
        made: the sentence of each new package's `__init__`.
    """
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if status.strip():
        raise SystemExit("the tree is not clean: commit first")
    names, known = Names(table), {path: name for name, path in modules().items()}
    changed = 0
    for path in tracked():
        text = path.read_text(encoding="utf-8")
        name = known.get(path, _dotted(str(path.relative_to(ROOT))))
        if path.suffix == ".py":
            new = names.in_code(text, name, path.name == "__init__.py")
        else:
            new = names.in_page(text) if path.suffix == ".md" else names.in_text(text)
        if path.name == "kernel_signatures.json":
            new = _sorted_entries(new)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed += 1
    for old, new in table.items():
        _git_move(
            SOURCE.parent / f"{old.replace('.', '/')}.py",
            SOURCE.parent / f"{new.replace('.', '/')}.py",
            made,
        )
    for old, new in names.tests.items():
        _git_move(ROOT / old, ROOT / new, {})
    say(f"{len(table)} modules and {len(names.tests)} tests moved, {changed} files rewritten")
    subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--quiet", "--select", "I", "--fix", "."],
        cwd=ROOT,
        check=False,
    )
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", "."], cwd=ROOT, check=False)


def _sorted_entries(text: str) -> str:
    """The text of kernel_signatures.json with its entries in the order of their names, as
    tools/kernel_signatures.py writes them.
    """
    head, *entries = re.split(r'(?m)^ (?=")', text.rstrip().removesuffix("}").rstrip())
    entries = sorted(entry.rstrip().rstrip(",") for entry in entries)
    return head + ",\n".join(f" {entry}" for entry in entries) + "\n}\n"


def _git_move(old: Path, new: Path, made: Mapping[str, str]) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    folder = new.parent
    while SOURCE in folder.parents and not (folder / "__init__.py").exists():
        name = ".".join(folder.relative_to(SOURCE).parts)
        (folder / "__init__.py").write_text(
            f'"""{made[name]}"""\n' if name in made else "", encoding="utf-8"
        )
        subprocess.run(["git", "add", str(folder / "__init__.py")], cwd=ROOT, check=True)
        folder = folder.parent
    subprocess.run(["git", "mv", str(old), str(new)], cwd=ROOT, check=True)


def verify(table: Mapping[str, str]) -> list[str]:
    """What is wrong behind the moves."""
    wrong = (
        []
        if compileall.compile_dir(str(SOURCE), quiet=2, force=True)
        else ["some module does not compile"]
    )
    sys.path.insert(0, str(SOURCE.parent))
    package = importlib.import_module(PACKAGE)
    for found in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.", onerror=lambda _: None):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            if (error.name or "").startswith(PACKAGE) or "cannot import name" in str(error):
                wrong.append(f"{found.name}: {error}")
    valid = set(table.values()) | {new.rpartition(".")[0] for new in table.values()}
    left = re.compile("|".join(rf"\b{re.escape(old)}\b(?!\.)" for old in table if old not in valid))
    for path in tracked():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found_name := left.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number} still names {found_name[0]}")
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "I,F401", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [*wrong, *([ruff.stdout] if ruff.returncode else [])]


def sentences() -> Iterator[tuple[str, str]]:
    """New packages, below `shardwright`, with the sentence of each, from the decision's list."""
    text = (ROOT / "docs" / "decisions" / "0027-rooms.md").read_text(encoding="utf-8")
    yield from re.findall(r"^\| `([a-z_.]+)` \| ([^|]+?) \|$", text, flags=re.MULTILINE)


def main() -> int:
    """Run one of the commands; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["check", "graph", "move", "verify"])
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument(
        "--only",
        default="",
        metavar="FOLDER",
        help="rows of one folder, such as cost or execute.numerics",
    )
    given = parser.parse_args()
    if given.command == "graph":
        print_graph(given.folder)
        return 0
    table = {
        old: new for old, new in read_table().items() if old.startswith(f"{PACKAGE}.{given.only}")
    }
    if given.command == "move":
        move(table, dict(sentences()))
        return 0
    wrong = check(table) if given.command == "check" else verify(table)
    say("\n".join(wrong) or "nothing is wrong")
    return 1 if any(not line.startswith("note") for line in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
