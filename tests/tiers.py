"""How much of a check runs: a part of every class in `make test`; all of it, from a fresh seed, in
`make proof`.

`pytest -m proof` is the proof tier, which is printed with its seed; SHARDWRIGHT_SEED repeats one.
Elsewhere examples are few and every run on the same code finds the same. Both hold for one choice
of tests: hypothesis takes one number in twenty from the constants in the sources of what is
imported by then, so that another choice, or another constant anywhere, draws other examples.

A test whose sizes come from here is in both tiers; one that is always marked `proof` is in the
second alone, beside a smaller one of its class.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Container, Iterable, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import seed, settings

VARIABLE = "SHARDWRIGHT_SEED"
"""In the environment of a proof and of the processes it starts, and nowhere else."""
FEWEST = 25
"""Examples of a property; with fewer it is a handful of fixed cases."""
MORE = 5
"""Examples of a proof for each of a test, where nothing else is said."""

Test = TypeVar("Test", bound=Callable[..., Any])


def choose(marks: str) -> None:
    """Set the tier, before tests are imported, from what pytest's option -m says."""
    if marks == "proof":
        os.environ.setdefault(VARIABLE, str(secrets.randbelow(10**9)))
    elif VARIABLE in os.environ:
        raise pytest.UsageError(f"{VARIABLE} repeats proofs: run them with -m proof, or unset it")


def in_proof() -> bool:
    return VARIABLE in os.environ


def many(test: int, proof: int | None = None) -> int:
    """A number of cases: `test` of them, or `proof` (`MORE` times as many) in a proof."""
    return (proof or MORE * test) if in_proof() else test


def random_of(key: int | str) -> Random:
    """A generator of its own for every key: the same each time, or of the proof's seed."""
    return Random(f"{os.environ[VARIABLE]} {key}") if in_proof() else Random(key)


def in_both(test: Test) -> Test:
    """Also in the proof tier: for a test that asks for `many` cases, or for a generator, itself."""
    return pytest.mark.proof(test) if in_proof() else test


def numbers(test: int, proof: int | None = None, *, first: int = 0) -> list[int]:
    """Seeds of random cases: counted from `first`, or drawn in a proof."""
    if not in_proof():
        return list(range(first, first + test))
    return random_of(f"numbers from {first}").sample(range(10**6), many(test, proof))


def cases(values: Sequence[Any], test: int) -> list[Any]:
    """Values for `parametrize`: so many spread over them, or in a proof all of them."""
    if not in_proof():
        return [values[i * len(values) // test] for i in range(test)]
    return _proven(values)


def chosen(values: Iterable[Any], test: Container[Any]) -> list[Any]:
    """Values for `parametrize`: those of `test` alone, or in a proof all of them."""
    return _proven(values) if in_proof() else [one for one in values if one in test]


def _proven(values: Iterable[Any]) -> list[Any]:
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.proof)
        for one in values
    ]


def seeds(test: int, proof: int | None = None, *, first: int = 0) -> list[Any]:
    """`numbers` as values for `parametrize`."""
    return [
        pytest.param(n, marks=pytest.mark.proof) if in_proof() else n
        for n in numbers(test, proof, first=first)
    ]


def examples(test: int, proof: int | None = None, **more: Any) -> Callable[[Test], Test]:
    """Decorator of a property: how many examples hypothesis makes of it; `more` are settings of
    hypothesis."""
    assert test >= FEWEST, f"a property has at least {FEWEST} examples"

    def decorate(function: Test) -> Test:
        sized: Test = settings(max_examples=many(test, proof), **more)(function)
        return in_both(seed(int(os.environ[VARIABLE]))(sized) if in_proof() else sized)

    return decorate
