"""The verbs of the command line: name -> where it is and what it does. Nothing is imported until a
verb is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.lazy_dataclass import dataclass


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
    "plan": Verb(
        target="shardwright.cli.plan:main",
        summary="find the fastest training plan in a search space, and prove it",
    ),
    "simulate": Verb(
        target="shardwright.cli.simulate:main",
        summary="predict the step time and memory of one strategy",
    ),
    "compare": Verb(
        target="shardwright.cli.compare:main",
        summary="predict strategies or clusters side by side, with costs",
    ),
    "explain": Verb(
        target="shardwright.cli.explain:main",
        summary="show a plan file's answer with the source of every number",
    ),
    "why": Verb(
        target="shardwright.cli.why:main",
        summary="what another strategy would gain or lose, or why it cannot be",
    ),
    "advise": Verb(
        target="shardwright.cli.advise:main",
        summary="what a launch script takes, and what would make it faster",
    ),
    "draw": Verb(
        target="shardwright.cli.draw:main",
        summary="draw a plan and its simulated step, as text or SVG",
    ),
    "tokenise": Verb(
        target="shardwright.cli.tokenise:main", summary="turn text into a token file for run"
    ),
    "trace": Verb(
        target="shardwright.cli.trace:main",
        summary="show how each device spends a step, simulated and measured",
    ),
    "check": Verb(
        target="shardwright.cli.check:main",
        summary="recompute a plan file and its certificate, and compare",
    ),
    "run": Verb(
        target="shardwright.cli.run:main",
        summary="train under a plan on PyTorch, and compare with the prediction",
    ),
    "weights": Verb(
        target="shardwright.cli.weights:main",
        summary="write a checkpoint's weights as Hugging Face safetensors",
    ),
    "export": Verb(
        target="shardwright.cli.export:main",
        summary="write a plan as a framework reads it, such as torchtitan",
    ),
    "serve-simulate": Verb(
        target="shardwright.cli.serve_simulate:main",
        summary="predict latencies, throughput and memory of a deployment",
    ),
    "validate": Verb(
        target="shardwright.cli.validate:main",
        summary="compare predictions with tables of measured runs",
    ),
    "calibrate": Verb(
        target="shardwright.cli.calibrate:main",
        summary="measure this machine, or import measurements, into a profile",
    ),
    "cluster": Verb(
        target="shardwright.cli.cluster:main",
        summary="read a cluster from topologies, Slurm or Kubernetes; draw one",
    ),
    "schema": Verb(
        target="shardwright.cli.schema:main",
        summary="print the JSON Schema of plan, simulation, profile or trace",
    ),
    "catalog": Verb(
        target="shardwright.cli.catalog:main",
        summary="list hardware, clusters, models, runtimes or schedules",
    ),
}


def find_verb(name: str) -> Verb:
    """The verb of that name.

    Raises:
        UsageError: there is none; the hint names the nearest.
    """
    if name not in VERBS:
        raise UsageError(f"unknown verb {name[:40]!r}", hint=nearest(name[:40], VERBS))
    return VERBS[name]
