"""The verbs of the command line: name -> where it is and what it does. Nothing is imported until a verb is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from shardwright.errors import UsageError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: ``module:attribute`` of a function from words to an exit code, and a line of help."""

    target: str
    summary: str

    def load(self) -> Callable[[Sequence[str]], int]:
        """Import the verb's module."""
        module, attribute = self.target.split(":")
        function: Callable[[Sequence[str]], int] = getattr(import_module(module), attribute)
        return function


VERBS: Final[Mapping[str, Verb]] = {
    "plan": Verb(target="shardwright.cli.plan:main", summary="find the best training plan of a space, and prove it"),
    "simulate": Verb(target="shardwright.cli.simulate:main", summary="predict time and memory of one strategy"),
    "compare": Verb(target="shardwright.cli.compare:main", summary="strategies or clusters side by side, with what training costs"),
    "explain": Verb(target="shardwright.cli.explain:main", summary="a plan file's answer, with the inputs and the source of each number"),
    "why": Verb(target="shardwright.cli.why:main", summary="what another strategy would gain and lose against a plan, or why it cannot be"),
    "draw": Verb(target="shardwright.cli.draw:main", summary="a picture of a plan and its simulated step, on the screen or as SVG"),
    "tokenise": Verb(target="shardwright.cli.tokenise:main", summary="make a file of tokens of texts, for run"),
    "trace": Verb(target="shardwright.cli.trace:main", summary="what each device does in a step, and when; beside what was measured"),
    "check": Verb(target="shardwright.cli.check:main", summary="verify a plan file and its certificate again"),
    "run": Verb(target="shardwright.cli.run:main", summary="train under a plan file on PyTorch, predicted against measured"),
    "validate": Verb(target="shardwright.cli.validate:main", summary="predicted against measured, row by row"),
    "calibrate": Verb(target="shardwright.cli.calibrate:main", summary="measure this machine, or import measurements, into a profile"),
    "schema": Verb(target="shardwright.cli.schema:main", summary="the JSON schema of a plan, simulation, profile or trace file"),
    "catalog": Verb(target="shardwright.cli.catalog:main", summary="list accelerators, models, runtimes or schedules"),
}


def find_verb(name: str) -> Verb:
    """The verb of that name.

    Raises:
        UsageError: there is none; the hint names the nearest.
    """
    if name not in VERBS:
        raise UsageError(f"unknown verb {name[:40]!r}", hint=nearest(name[:40], VERBS))
    return VERBS[name]
