"""Record or check the output of 400 commands of the CLI, as digests in tests/lock/locked.tsv.

    python tools/behaviour_lock.py --check                 # compare all commands with locked.tsv
    python tools/behaviour_lock.py --check --only mixed    # "mixed" in the name or the arguments
    python tools/behaviour_lock.py --record                # write the current output to locked.tsv

`--check` exits with code 1 where any output differs from the recorded one, and prints the command
that records the new output of these commands (`--record --names NAME...`).

The columns of locked.tsv, one command a line:

- `name`: name of the command, unique in the file.
- `words`: command line arguments, without the leading `shardwright`.
- `exit_code`: exit code of the command.
- `answer`: digest of the JSON that the command prints, without the sentences in it.
- `files`: digest of the files that the command writes, without the sentences in JSON files.
- `texts`: digest of those sentences, which are for people to read, and of the error output of a
  command that fails and prints nothing. `--allow-texts` ignores this column.

A digest is the first 32 hexadecimal digits of a SHA-256. To add a command, add a line with its name
and its arguments only, and run `--record`, which fills in the other columns.

In the arguments, `OUT/` is the output folder of the command itself. `FROM:NAME/` is the output
folder of the command NAME, which then runs first. Other paths are relative to the root of the
checkout.

One process imports the package and runs no command. Each command runs in a fork of it. So no
command sees what another one left in a cache, and Python starts once for all 400 commands.
`--record` keeps the full output in build/lock/recorded, and `--check` in build/lock/checked. Where
an output differs, `--check` prints a diff of the two.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import gc
import hashlib
import json
import math
import os
import pkgutil
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKED: Final = ROOT / "tests" / "lock" / "locked.tsv"
KEPT: Final = ROOT / "build" / "lock"

CLOCKS: Final[Mapping[str, str]] = {"search_time_s": "wall seconds that a search took"}
"""JSON field -> what it measures, for the fields that are not compared because they depend on a
clock. No other field depends on a clock, a date or the release. This was checked: two recordings,
in different orders and with different hash seeds, differed in these fields only. Folders of this
machine are replaced by fixed names (`_stated`).
"""

LIMITS: Final = (("shardwright.search.grid.build_error_where_nothing_fits", "LONGEST_S"),)
"""(module, constant) of wall-clock limits that are set to infinity for all commands. On a slow
machine the output would depend on them: the limit stops the search for changes of a plan that would
make it fit in memory."""

TEXTS: Final = frozenset(
    {
        *(
            "about",
            "assumptions",
            "description",
            "hint",
            "means",
            "message",
            "notes",
            "quantity",
            "reason",
            "reference",
        ),
        *("summary", "text", "title", "verdict", "why", "words"),
    }
)
"""JSON fields whose strings are sentences for people to read: digested in the column `texts`.
Values of other types in these fields, and all other fields, are digested in `answer` or `files`."""

SETTINGS: Final = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
"""Environment variables that are set for all commands; those of `UNSET` are removed."""
UNSET: Final = ("COLUMNS", "FORCE_COLOR", "SHARDWRIGHT_SEED")

LEFT_OUT: Final = (
    "shardwright.execute",
    "shardwright.calibrate",
    "shardwright.compile_numba_kernels_to_objects",
    "shardwright._kernels",
)
"""Packages that are not imported before the fork. They need an optional extra, or start threads
that a fork would lose."""

SHOWN_LINES: Final = 24
"""Number of lines of a diff that are printed for one command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A line of locked.tsv: a command and the digests of its output (columns: see the module).

    A digest is empty where nothing was recorded yet, or where the command writes no files or no
    sentences.
    """

    name: str
    words: str
    exit_code: str = ""
    answer: str = ""
    files: str = ""
    texts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of a run of a command.

    Args:
        line: the line for locked.tsv.
        text: the full output, as JSON.
        cpu_s: CPU seconds that the command took, of user and system.
    """

    line: Locked
    text: str
    cpu_s: float


def read_lock(path: Path = LOCKED) -> list[Locked]:
    """All commands of locked.tsv, in the order of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    lines = [Locked(**{key: value or "" for key, value in row.items()}) for row in rows]
    names = [line.name for line in lines]
    if len(set(names)) < len(names):
        raise SystemExit(
            f"names that stand twice: {sorted({name for name in names if names.count(name) > 1})}"
        )
    return lines


def write_lock(lines: Sequence[Locked], path: Path = LOCKED) -> None:
    """Overwrite locked.tsv with the lines."""
    fields = list(Locked.__dataclass_fields__)
    rows = [
        "\t".join(fields),
        *("\t".join(getattr(line, field) for field in fields).rstrip("\t") for line in lines),
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def needed(words: str) -> list[str]:
    """Names of the commands whose output files the arguments refer to (`FROM:NAME/`)."""
    return re.findall(r"FROM:([a-z0-9.-]+)/", words)


def in_rounds(lines: Sequence[Locked]) -> Iterator[list[Locked]]:
    """The commands in rounds: a command reads only files that commands of earlier rounds wrote."""
    done: set[str] = set()
    left = list(lines)
    while left:
        ready = [line for line in left if done.issuperset(needed(line.words))]
        if not ready:
            raise SystemExit(
                f"these read files that no command writes: {[line.name for line in left]}"
            )
        yield ready
        done |= {line.name for line in ready}
        left = [line for line in left if line.name not in done]


def chosen(lines: Sequence[Locked], wanted: Callable[[Locked], bool]) -> list[Locked]:
    """The commands that `wanted` accepts, and all commands whose files they need."""
    by_name = {line.name: line for line in lines}
    waiting = [line.name for line in lines if wanted(line)]
    names: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += needed(by_name[name].words)
    return [line for line in lines if line.name in names]


def import_package() -> None:
    """Import the modules that commands use, before any fork, and lift the limits of `LIMITS`."""
    package = import_module("shardwright")
    for module in pkgutil.walk_packages(package.__path__, "shardwright.", onerror=lambda _: None):
        if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
            import_module(module.name)
    for name, limit in LIMITS:
        assert hasattr(import_module(name), limit)
        setattr(import_module(name), limit, math.inf)
    gc.collect()
    gc.freeze()


def run_all(
    lines: Sequence[Locked],
    found: dict[str, Ran],
    *,
    jobs: int,
    folder: Path,
    report: Callable[[Ran], None] = lambda _: None,
) -> None:
    """Run the commands, `jobs` at a time, each in a fork of this process.

    Args:
        found: command name -> result; filled as commands end.
        folder: each command writes its files in a subfolder of its name.
        report: called with each result as the command ends.
    """
    import_package()
    running: dict[int, Locked] = {}

    def wait() -> None:
        number, _, usage = os.wait4(-1, 0)
        if number in running:
            line = running.pop(number)
            found[line.name] = ran_of(line, folder, cpu_s=usage.ru_utime + usage.ru_stime)
            report(found[line.name])

    for ready in in_rounds(lines):
        for line in ready:
            while len(running) >= jobs:
                wait()
            number = os.fork()
            if number == 0:
                _run(line, folder)
            running[number] = line
        while running:
            wait()


def _run(line: Locked, folder: Path) -> None:
    """In the fork: run one command and end this process."""
    code = 70
    try:
        own = folder / line.name
        (own / "out").mkdir(parents=True)
        for number, name in ((1, "printed"), (2, "errors")):
            os.dup2(os.open(own / name, os.O_CREAT | os.O_WRONLY), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(ROOT)
        words = [placed(word, own=own, folder=folder) for word in shlex.split(line.words)]
        code = import_module("shardwright.cli.main").run([*words, "--json"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        (folder / line.name / "exit").write_text(str(code))
        os._exit(0)


def placed(word: str, *, own: Path, folder: Path) -> str:
    """An argument with `OUT` and `FROM:NAME` replaced by the paths of these folders."""
    word = re.sub(r"\bOUT(?=/)", str(own / "out"), word)
    return re.sub(r"FROM:([a-z0-9.-]+)(?=/)", lambda name: str(folder / name[1] / "out"), word)


def ran_of(line: Locked, folder: Path, *, cpu_s: float) -> Ran:
    """The result of a command that has ended, read from the files in its folder."""
    own = folder / line.name
    code = (own / "exit").read_text()
    printed = _stated((own / "printed").read_text(encoding="utf-8", errors="replace"), folder)
    sentences: list[str] = []
    answer = without(parsed(printed), sentences)
    if code != "0" and not printed.strip():
        sentences.append(
            _stated((own / "errors").read_text(encoding="utf-8", errors="replace"), folder)
        )
    files = {
        str(path.relative_to(own / "out")): written(path, folder, sentences)
        for path in sorted((own / "out").rglob("*"))
        if path.is_file()
    }
    sentences.sort()
    whole = {"exit_code": code, "answer": answer, "files": files, "texts": sentences}
    result = replace(
        line,
        exit_code=code,
        answer=digest(answer),
        files=digest(files) if files else "",
        texts=digest(sentences) if sentences else "",
    )
    return Ran(
        line=result,
        text=json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        cpu_s=cpu_s,
    )


def _stated(text: str, folder: Path) -> str:
    """The text with the paths of output folders and of the checkout replaced by fixed names."""
    text = re.sub(re.escape(str(folder)) + r"/([a-z0-9.-]+)/out", r"FROM:\1", text)
    return text.replace(str(ROOT), "ROOT")


def parsed(text: str) -> Any:
    """The value of a JSON text; the text itself where it is not valid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def written(path: Path, folder: Path, sentences: list[str]) -> Any:
    """The content of a file that a command wrote, in a form to compare.

    It is the value of a .json file without its sentences, which are added to `sentences`; the text
    of any other text file; and a SHA-256 digest of a binary file.
    """
    content = path.read_bytes()
    try:
        text = _stated(content.decode(), folder)
    except UnicodeDecodeError:
        return hashlib.sha256(content).hexdigest()
    return without(parsed(text), sentences) if path.suffix == ".json" else text


def without(value: Any, sentences: list[str]) -> Any:
    """A JSON value without clock fields (`CLOCKS`) and without the sentences of `TEXTS` fields.

    The sentences are added to `sentences`.
    """
    if isinstance(value, list):
        return [without(item, sentences) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        if key in CLOCKS:
            continue
        if key in TEXTS and strings_of(item):
            sentences += strings_of(item)
        else:
            kept[key] = without(item, sentences)
    return kept


def strings_of(value: Any) -> list[str]:
    """The strings of a value that is a string or a list of strings; empty for any other value."""
    if isinstance(value, str):
        return [value]
    return (
        list(value)
        if isinstance(value, list) and all(isinstance(item, str) for item in value)
        else []
    )


def digest(value: Any) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def differences(old: Locked, new: Locked, *, texts: bool = True) -> list[str]:
    """Names of the columns that differ between two lines of the same command."""
    columns = ["exit_code", "answer", "files", *(["texts"] if texts else [])]
    return [column for column in columns if getattr(old, column) != getattr(new, column)]


def difference(name: str, text: str) -> list[str]:
    """A diff of the recorded output of a command and of `text`, its output now.

    Empty where build/lock/recorded does not have the recorded output.
    """
    recorded = KEPT / "recorded" / f"{name}.json"
    if not recorded.exists():
        return []
    lines = difflib.unified_diff(
        recorded.read_text(encoding="utf-8").splitlines(),
        text.splitlines(),
        "recorded",
        "now",
        lineterm="",
        n=1,
    )
    found = [line[:200] for line in lines]
    return found[:SHOWN_LINES] + (
        [f"... {len(found) - SHOWN_LINES} more lines"] if len(found) > SHOWN_LINES else []
    )


def compared(lines: Sequence[Locked], found: Mapping[str, Ran], *, texts: bool = True) -> list[str]:
    """The lines to print about the commands whose output differs from the recorded one."""
    result: list[str] = []
    for line in lines:
        if columns := differences(line, found[line.name].line, texts=texts):
            result += [f"{line.name}: {', '.join(columns)}", f"  shardwright {line.words}"]
            result += [f"    {text}" for text in difference(line.name, found[line.name].text)]
    return result


def how_to_compare(names: Sequence[str]) -> str:
    """The line to print after differences: how to find those that have another cause."""
    return (
        "If your change should leave an answer as it was, check it in a clean checkout of the last"
        f" commit: python tools/behaviour_lock.py --check --names {' '.join(names)}. Where it"
        " differs there too, your change is not the cause: do not record it."
    )


def how_to_record(names: Sequence[str]) -> str:
    """The line to print after differences: the command that records the new output."""
    return (
        f"If your change should change these answers, record them in {LOCKED.relative_to(ROOT)}:"
        f" python tools/behaviour_lock.py --record --names {' '.join(names)}"
    )


def how_to_see(names: Sequence[str]) -> list[str]:
    """The line to print where the recorded output of a command is not here; else no line."""
    recorded = KEPT / "recorded"
    if all((recorded / f"{name}.json").exists() for name in names):
        return []
    return [
        "To see what changed: record these names in a clean checkout of the last commit, copy its"
        f" {recorded.relative_to(ROOT)} here, and check again."
    ]


def keep(found: Mapping[str, Ran], folder: Path) -> None:
    """Write the full output of each command to NAME.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, ran in found.items():
        (folder / f"{name}.json").write_text(ran.text, encoding="utf-8")


def say(line: str) -> None:
    """Write a line to standard output and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _print_cost(ran: Ran) -> None:
    say(f"{ran.cpu_s:7.2f} s  {ran.line.exit_code}  {ran.line.name}")


def prepare_environment() -> None:
    """Fix the environment variables that the output of commands could depend on.

    Call it before numpy is imported, which reads OMP_NUM_THREADS.
    """
    os.environ.update(SETTINGS)
    for name in UNSET:
        os.environ.pop(name, None)
    sys.path[:0] = [path for path in (str(ROOT / "src"),) if path not in sys.path]


def main(arguments: Sequence[str]) -> int:
    """Record or check, as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--record",
        action="store_true",
        help="run the commands and write their digests to locked.tsv",
    )
    action.add_argument(
        "--check",
        action="store_true",
        help="run the commands and compare their digests with locked.tsv",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="run only commands with TEXT in the name or the arguments",
    )
    parser.add_argument(
        "--names",
        nargs="+",
        default=[],
        metavar="NAME",
        help="run only the commands of these names",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="commands to run in parallel; default: the CPUs of the machine",
    )
    parser.add_argument(
        "--allow-texts", action="store_true", help="ignore changed sentences (column texts)"
    )
    parser.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the commands in random order, with this random seed",
    )
    parser.add_argument(
        "--costs", action="store_true", help="print the CPU seconds of each command as it ends"
    )
    given = parser.parse_args(arguments)
    prepare_environment()
    begun = time.monotonic()
    lines = read_lock()
    ordered = list(lines)
    if given.shuffle is not None:
        random.Random(given.shuffle).shuffle(ordered)
    if unknown := set(given.names) - {line.name for line in lines}:
        parser.error(f"no command is named {', '.join(sorted(unknown))}")
    asked = chosen(
        ordered,
        lambda line: (
            line.name in given.names if given.names else given.only in f"{line.name} {line.words}"
        ),
    )
    found: dict[str, Ran] = {}
    # A plan file stores the relative path from its folder to the model's file. With the temporary
    # folder inside the repository, that path does not depend on where the repository is.
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT, prefix="run") as folder:
        report = _print_cost if given.costs else lambda _: None
        try:
            run_all(asked, found, jobs=given.jobs, folder=Path(folder).resolve(), report=report)
        except KeyboardInterrupt:
            say("stopped: what follows is about the commands that ended")
    spent = (
        f"{sum(ran.cpu_s for ran in found.values()):.0f} CPU seconds,"
        f" {time.monotonic() - begun:.0f} s"
    )
    if given.record:
        shutil.rmtree(KEPT / "checked", ignore_errors=True)
        keep(found, KEPT / "recorded")
        changed = [
            line.name
            for line in lines
            if line.name in found and differences(line, found[line.name].line)
        ]
        write_lock([found[line.name].line if line.name in found else line for line in lines])
        say(f"{len(found)} commands recorded, {len(changed)} of them new or changed; {spent}")
        return 0
    keep(found, KEPT / "checked")
    texts = not given.allow_texts
    ended = [line for line in lines if line.name in found]
    different = [
        line.name for line in ended if differences(line, found[line.name].line, texts=texts)
    ]
    for text in compared(ended, found, texts=texts):
        say(text)
    say(f"{len(found) - len(different)} of {len(found)} answers as recorded; {spent}")
    if different:
        told = [how_to_compare(different), how_to_record(different), *how_to_see(different)]
        say("\n".join(told))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
