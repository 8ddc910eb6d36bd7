"""Check a commit's message; git runs it through ``.githooks/commit-msg`` before each commit.

A subject is ``area: effect``: the area is a folder or a module of the repository, the effect is in
the imperative, and both together have 10 to 72 characters. A commit that changes more than 100
lines has a body. ``make env`` turns the hook on (``git config core.hooksPath .githooks``).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORTEST_SUBJECT, LONGEST_SUBJECT = 10, 72
LINES_WITHOUT_BODY = 100
# Areas that are no folder or module.
OTHER_AREAS = frozenset({"build", "ci", "release"})
_SUBJECT = re.compile(r"(?P<areas>[a-z0-9_./-]+(?:, [a-z0-9_./-]+)*): (?P<effect>\S.*)")
_NOT_IMPERATIVE = frozenset(
    {"a", "an", "the", "what", "that", "this", "these", "those", "it", "they", "no", "some", "all"}
)
# Verbs that look like a past tense or a participle.
_VERBS = frozenset(
    {"bring", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "spread"}
)


def areas(root: Path = ROOT) -> frozenset[str]:
    """Names that a subject may open with: folders and modules of the repository."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    found = set(OTHER_AREAS)
    for line in listed.splitlines():
        path = Path(line)
        found.update(part.lower().lstrip(".") for part in path.parts[:-1])
        found.add(path.stem.lower().lstrip("."))
    return frozenset(found)


def faults(message: str, *, changed_lines: int, known_areas: frozenset[str]) -> tuple[str, ...]:
    """Faults of a commit's message, one sentence each; empty where there is none.

    Args:
        message: as git gives it; lines that begin with "#" are not part of it.
        changed_lines: lines that the commit adds and removes.
        known_areas: see `areas`.
    """
    lines = [line for line in message.split("\n") if not line.startswith("#")]
    subject = lines[0].rstrip() if lines else ""
    found = list(_subject_faults(subject, known_areas))
    if len(lines) > 1 and lines[1].strip():
        found.append("the line behind the subject must be empty")
    if changed_lines > LINES_WITHOUT_BODY and not any(line.strip() for line in lines[2:]):
        found.append(
            f"{changed_lines} lines change: say why in a body (needed above {LINES_WITHOUT_BODY}"
            " lines)"
        )
    return tuple(found)


def _subject_faults(subject: str, known_areas: frozenset[str]) -> tuple[str, ...]:
    """Faults of the first line."""
    found = []
    if not SHORTEST_SUBJECT <= len(subject) <= LONGEST_SUBJECT:
        found.append(
            f"the subject has {len(subject)} characters, not {SHORTEST_SUBJECT} to"
            f" {LONGEST_SUBJECT}"
        )
    parts = _SUBJECT.fullmatch(subject)
    if parts is None:
        found.append('the subject must read "area: effect", as in "search: bound the last stage"')
        return tuple(found)
    for area in re.split(r", |/", parts["areas"]):
        if area not in known_areas:
            found.append(f"{area!r} is no folder and no module of this repository")
    first = parts["effect"].split()[0].rstrip(",;:")
    if not _is_imperative(first):
        found.append(f'the effect must open with a verb in the imperative, not with "{first}"')
    if subject.endswith("."):
        found.append("the subject must not end with a full stop")
    return tuple(found)


def _is_imperative(word: str) -> bool:
    """Whether a word may be a verb in the imperative; only certain failures are False."""
    if word.lower() in _NOT_IMPERATIVE or not word[:1].isalpha() or word[:1].isupper():
        return False
    return word in _VERBS or not word.endswith(("ed", "ing"))


def changed_lines(root: Path = ROOT) -> int:
    """Lines that the commit in the making adds and removes; binary files count nothing."""
    table = subprocess.run(
        ["git", "diff", "--cached", "--numstat"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    counts = [line.split("\t")[:2] for line in table.splitlines()]
    return sum(int(count) for pair in counts for count in pair if count.isdigit())


def main(path: str) -> int:
    """Print the faults of the message in a file; 1 where there are any."""
    message = Path(path).read_text(encoding="utf-8")
    found = faults(message, changed_lines=changed_lines(), known_areas=areas())
    for fault in found:
        sys.stderr.write(f"commit message: {fault}\n")
    if found:
        sys.stderr.write("hint: CONTRIBUTING.md has examples\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
