"""Check a commit message. The git hook ``.githooks/commit-msg`` runs this file at each commit.

The subject must read ``area: effect`` and have 10 to 72 characters. The area is the name of a
folder or a module of the repository; several are separated by ", " or "/". The effect begins with a
verb in the imperative. A commit that changes more than 100 lines must have a body. ``make env``
turns the hook on (``git config core.hooksPath .githooks``).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORTEST_SUBJECT, LONGEST_SUBJECT = 10, 72
LINES_WITHOUT_BODY = 100
# Areas that are allowed although no folder or module has the name.
OTHER_AREAS = frozenset({"build", "ci", "release"})
_SUBJECT = re.compile(r"(?P<areas>[a-z0-9_./-]+(?:, [a-z0-9_./-]+)*): (?P<effect>\S.*)")
_NOT_IMPERATIVE = frozenset(
    {"a", "an", "the", "what", "that", "this", "these", "those", "it", "they", "no", "some", "all"}
)
# Imperative verbs that end in "ed" or "ing", so that they look like a past tense or a participle.
_VERBS = frozenset(
    {"bring", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "spread"}
)


def areas(root: Path = ROOT) -> frozenset[str]:
    """Names that are allowed as an area: folders and modules of the repository, `OTHER_AREAS`."""
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
    """Faults of a commit message, one sentence each; empty where it has none.

    Args:
        message: text of the message file that git passes to the hook; lines that begin with "#" are
            ignored.
        changed_lines: number of lines that the commit adds plus number that it removes.
        known_areas: the allowed areas, see `areas`.
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
    """Faults of the subject, the first line of the message."""
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
    """True unless a word certainly is no verb in the imperative.

    Articles, pronouns, capitalized words, and words that end in "ed" or "ing" are none.
    """
    if word.lower() in _NOT_IMPERATIVE or not word[:1].isalpha() or word[:1].isupper():
        return False
    return word in _VERBS or not word.endswith(("ed", "ing"))


def changed_lines(root: Path = ROOT) -> int:
    """Number of lines that the staged changes add and remove; a binary file counts as 0."""
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
    """Print the faults of the message in the file `path`; return 1 if it has any, else 0."""
    message = Path(path).read_text(encoding="utf-8")
    found = faults(message, changed_lines=changed_lines(), known_areas=areas())
    for fault in found:
        sys.stderr.write(f"commit message: {fault}\n")
    if found:
        sys.stderr.write("hint: CONTRIBUTING.md has examples\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
