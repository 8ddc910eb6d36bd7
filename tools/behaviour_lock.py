"""Record or check what 400 commands answer: tests/lock/locked.tsv.

    python tools/behaviour_lock.py --check                 # compare
    python tools/behaviour_lock.py --check --only mixed    # those with "mixed" in name or words
    python tools/behaviour_lock.py --record                # write this tree's answers to locked.tsv

The exit code of `--check` is 1 where an answer differs.

A line of locked.tsv is a name, the words behind `shardwright`, and the answer: the exit code and
three SHA-256 digests (their first 32 digits). `answer` is of the JSON that the command prints,
`files` of the files that it writes, `texts` of the sentences among both, which are for people:
`--allow-texts` accepts other ones. A new command is a line with its name and words alone;
`--record` adds the rest.

In the words, `OUT/` is a folder of the command's own, and `FROM:NAME/` that of another command,
which then runs first. Paths are relative to the root of the checkout.

Each command runs in a fork of a process that has imported the package and has run nothing: what an
earlier command left in a cache changes no answer, and 400 commands start one Python. Answers of
`--record` are kept in build/lock/recorded, those of `--check` in build/lock/checked: from both a
mismatch prints what differs.
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
"""Fields of answers and files that are left out, and why. Nothing else that is printed or written
depends on a clock, a date or the release: two recordings, in different orders and with different
hash seeds, differ in these alone. Folders of this machine are replaced by fixed names (`_stated`).
"""

LIMITS: Final = (("shardwright.search.grid.infeasible", "LONGEST_S"),)
"""Wall-clock limits that an answer depends on on a slow machine (the changes that "what would fit"
tries): lifted for all commands."""

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
"""Fields whose strings are sentences for people. The numbers that `value` has beside `quantity` are
no texts."""

SETTINGS: Final = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
"""Environment of all commands; the variables of `UNSET` are not in it."""
UNSET: Final = ("COLUMNS", "FORCE_COLOR", "SHARDWRIGHT_SEED")

LEFT_OUT: Final = (
    "shardwright.execute",
    "shardwright.calibrate",
    "shardwright.kernel_objects",
    "shardwright._kernels",
)
"""Packages that are not imported before the fork: they need an optional extra, or threads of its
own that a fork would lose."""

SHOWN_LINES: Final = 24
"""Lines of a difference that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A command and its answer; digests are empty where nothing was recorded yet, or where there is
    no such part.
    """

    name: str
    words: str
    exit_code: str = ""
    answer: str = ""
    files: str = ""
    texts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command did: its line, its answer as text, and the CPU seconds that it took."""

    line: Locked
    text: str
    cpu_s: float


def read_lock(path: Path = LOCKED) -> list[Locked]:
    """All commands in the order of the file."""
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
    """Write the file anew."""
    fields = list(Locked.__dataclass_fields__)
    rows = [
        "\t".join(fields),
        *("\t".join(getattr(line, field) for field in fields).rstrip("\t") for line in lines),
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def needed(words: str) -> list[str]:
    """Names of the commands whose files a command reads."""
    return re.findall(r"FROM:([a-z0-9.-]+)/", words)


def in_rounds(lines: Sequence[Locked]) -> Iterator[list[Locked]]:
    """The commands in rounds: each reads files of earlier rounds only."""
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
    """The wanted commands, and those whose files they read."""
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
    """Import all that commands import, so that forks have it."""
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
    """Run the commands, `jobs` at a time, each in a fork of this process with its files in
    `folder`; answers are added to `found`.
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
    """A word with the folders that it names."""
    word = re.sub(r"\bOUT(?=/)", str(own / "out"), word)
    return re.sub(r"FROM:([a-z0-9.-]+)(?=/)", lambda name: str(folder / name[1] / "out"), word)


def ran_of(line: Locked, folder: Path, *, cpu_s: float) -> Ran:
    """What a command left behind, as digests and as text."""
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
    """A text in which folders of this machine have fixed names."""
    text = re.sub(re.escape(str(folder)) + r"/([a-z0-9.-]+)/out", r"FROM:\1", text)
    return text.replace(str(ROOT), "ROOT")


def parsed(text: str) -> Any:
    """The value of a JSON text; the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def written(path: Path, folder: Path, sentences: list[str]) -> Any:
    """The content of a file that a command wrote: the value of JSON, the text, or a digest of the
    bytes.
    """
    content = path.read_bytes()
    try:
        text = _stated(content.decode(), folder)
    except UnicodeDecodeError:
        return hashlib.sha256(content).hexdigest()
    return without(parsed(text), sentences) if path.suffix == ".json" else text


def without(value: Any, sentences: list[str]) -> Any:
    """A JSON value without clocks (`CLOCKS`) and without texts (`TEXTS`), which are added to
    `sentences`.
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
    """The strings of a string or of a list of strings; none of any other value."""
    if isinstance(value, str):
        return [value]
    return (
        list(value)
        if isinstance(value, list) and all(isinstance(item, str) for item in value)
        else []
    )


def digest(value: Any) -> str:
    """The first 32 digits of the SHA-256 digest of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def differences(old: Locked, new: Locked, *, texts: bool = True) -> list[str]:
    """Names of the columns that differ."""
    columns = ["exit_code", "answer", "files", *(["texts"] if texts else [])]
    return [column for column in columns if getattr(old, column) != getattr(new, column)]


def difference(name: str, text: str) -> list[str]:
    """Lines of a recorded answer and of this one that differ, if the recorded one was kept."""
    recorded = KEPT / "recorded" / f"{name}.json"
    if not recorded.exists():
        return [
            f"(no recorded answer in {recorded.parent.relative_to(ROOT)}: run --record in a"
            " checkout of the recorded commit)"
        ]
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
    """What to print of the commands whose answer is not the recorded one."""
    result: list[str] = []
    for line in lines:
        if columns := differences(line, found[line.name].line, texts=texts):
            result += [f"{line.name}: {', '.join(columns)}", f"  shardwright {line.words}"]
            result += [f"    {text}" for text in difference(line.name, found[line.name].text)]
    return result


def keep(found: Mapping[str, Ran], folder: Path) -> None:
    """Write the answers as text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, ran in found.items():
        (folder / f"{name}.json").write_text(ran.text, encoding="utf-8")


def say(line: str) -> None:
    """Write a line to standard output at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _print_cost(ran: Ran) -> None:
    say(f"{ran.cpu_s:7.2f} s  {ran.line.exit_code}  {ran.line.name}")


def prepare_environment() -> None:
    """Set what answers must not depend on; before numpy is imported."""
    os.environ.update(SETTINGS)
    for name in UNSET:
        os.environ.pop(name, None)
    sys.path[:0] = [path for path in (str(ROOT / "src"),) if path not in sys.path]


def main(arguments: Sequence[str]) -> int:
    """Record or check; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--record", action="store_true", help="write the answers of this tree into locked.tsv"
    )
    action.add_argument(
        "--check", action="store_true", help="compare the answers of this tree with locked.tsv"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="commands whose name or words contain TEXT"
    )
    parser.add_argument(
        "--names", nargs="+", default=[], metavar="NAME", help="commands of these names"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="commands that run at a time",
    )
    parser.add_argument(
        "--allow-texts", action="store_true", help="accept other sentences (column texts)"
    )
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="run the commands in another order"
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
    # A plan keeps the path from its own folder to its model: inside the repository that is the same
    # wherever the repository lies.
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
    wrong = compared(
        [line for line in lines if line.name in found], found, texts=not given.allow_texts
    )
    for text in wrong:
        say(text)
    number = sum(not line.startswith(" ") for line in wrong)
    say(f"{len(found) - number} of {len(found)} answers as recorded; {spent}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
