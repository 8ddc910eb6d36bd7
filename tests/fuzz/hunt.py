"""Gives mutated inputs to every parser: each returns a value or raises an error of the project, one
printable line with a hint of one."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

from shardwright.errors import ShardwrightError
from tests.fuzz.mutate import mutated
from tests.fuzz.parsers import Parser

MAX_LINE = 1000
"""Characters of a message: more than that is an echo of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """An input that ended otherwise than in a value or an error of the project.

    Args:
        seed: of the generator that drew the input: `input_of(parser, seed)` is it.
        what: what happened; a traceback, or the bad message.
    """

    parser: str
    seed: str
    text: str
    what: str


def input_of(parser: Parser, seed: str) -> str:
    """The input that a seed means."""
    return mutated((*parser.samples, *parser.others), Random(f"{parser.name} {seed}"))


def verdict(parser: Parser, text: str) -> str:
    """Empty where the parser did what it should with `text`; else what it did."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parser.read(text)
    except ShardwrightError as error:
        for line in (error.message, error.hint):
            if len(line) > MAX_LINE or any(not c.isprintable() for c in line):
                return f"not one printable line: {line[:200]!r}"
        return "" if error.message else "an error without a message"
    except Exception:
        return traceback.format_exc()
    return ""


def hunt(
    parsers: Sequence[Parser],
    number: int,
    *,
    seed: str,
    told: Callable[[str, int], None] | None = None,
) -> list[Escape]:
    """Escapes among `number` inputs, shared by the parsers' weights.

    Args:
        told: called with a parser's name and how many of its inputs are done, every thousand.
    """
    escapes = []
    whole = sum(parser.weight for parser in parsers)
    for parser in parsers:
        for k in range(round(number * parser.weight / whole)):
            each = f"{seed} {k}"
            text = input_of(parser, each)
            what = verdict(parser, text)
            if what:
                escapes.append(Escape(parser=parser.name, seed=each, text=text, what=what))
            if told and k % 1000 == 999:
                told(parser.name, k + 1)
    return escapes


def seconds_of(parser: Parser, number: int, *, seed: str) -> tuple[float, float]:
    """Seconds of the mean and of the slowest of some inputs, for who chooses weights."""
    times = []
    for k in range(number):
        text = input_of(parser, f"{seed} {k}")
        start = perf_counter()
        verdict(parser, text)
        times.append(perf_counter() - start)
    return sum(times) / number, max(times)
