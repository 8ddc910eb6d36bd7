"""``python -m tests.fuzz``: a million inputs of a new seed over all parsers; what escapes is
printed and the exit code is 1."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections import Counter

from tests.fuzz.hunt import hunt, seconds_of
from tests.fuzz.parsers import parsers
from tests.tiers import VARIABLE


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _progress(name: str, done: int) -> None:
    sys.stderr.write(f"\r{name:16} {done:9,}")
    sys.stderr.flush()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--number", type=int, default=1_000_000, help="inputs over all parsers")
    arguments.add_argument("--parser", action="append", help="only this one; repeatable")
    arguments.add_argument(
        "--times",
        action="store_true",
        help="milliseconds of an input of each parser, mean and longest, of 300",
    )
    given = arguments.parse_args()
    seed = os.environ.get(VARIABLE) or str(secrets.randbelow(10**9))
    chosen = [parser for parser in parsers() if not given.parser or parser.name in given.parser]
    if given.times:
        for parser in chosen:
            mean, longest = seconds_of(parser, 300, seed=seed)
            _say(f"{parser.name:16} {mean * 1e3:8.2f} ms {longest * 1e3:8.2f} ms")
        return 0
    _say(f"{given.number:,} inputs over {len(chosen)} parsers; {VARIABLE}={seed} repeats them")
    escapes = hunt(chosen, given.number, seed=seed, told=_progress if sys.stderr.isatty() else None)
    for escape in escapes[:20]:
        _say(f"\n{escape.parser}, input {escape.seed!r}: {escape.text[:2000]!r}\n{escape.what}")
    counts = Counter(
        (escape.parser, escape.what.rstrip().rpartition("\n")[2][:100]) for escape in escapes
    )
    for (name, last), count in counts.most_common():
        _say(f"{count:6} {name}: {last}")
    _say(f"{len(escapes)} escapes")
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())
