"""The verbs of the command line, each in a module that is imported when the verb is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from shardwright.registry import Registry

SUMMARIES: Final[Mapping[str, str]] = {
    "plan": "find the fastest training plan in a search space, and prove it",
    "simulate": "predict the step time and memory of one strategy",
    "compare": "predict strategies or clusters side by side, with costs",
    "explain": "show a plan file's answer with the source of every number",
    "why": "what another strategy would gain or lose, or why it cannot be",
    "advise": "what a launch script takes, and what would make it faster",
    "draw": "draw a plan and its simulated step, as text or SVG",
    "tokenise": "turn text into a token file for run",
    "trace": "show how each device spends a step, simulated and measured",
    "check": "recompute a plan file and its certificate, and compare",
    "run": "train under a plan on PyTorch, and compare with the prediction",
    "weights": "write a checkpoint's weights as Hugging Face safetensors",
    "export": "write a plan as a framework reads it, such as torchtitan",
    "serve-simulate": "predict latencies, throughput and memory of a deployment",
    "validate": "compare predictions with tables of measured runs",
    "calibrate": "measure this machine, or import measurements, into a profile",
    "cluster": "read a cluster from topologies, Slurm or Kubernetes; draw one",
    "schema": "print the JSON Schema of plan, simulation, profile or trace",
    "catalog": "list hardware, clusters, models, runtimes or schedules",
}
"""A line of help for each verb, in the order of ``shardwright --help``."""
VERBS: Final = Registry[Callable[[Sequence[str]], int]](
    "verb",
    {
        "plan": "shardwright.cli.plan:main",
        "simulate": "shardwright.cli.simulate:main",
        "compare": "shardwright.cli.compare:main",
        "explain": "shardwright.cli.explain:main",
        "why": "shardwright.cli.why:main",
        "advise": "shardwright.cli.advise:main",
        "draw": "shardwright.cli.draw:main",
        "tokenise": "shardwright.cli.tokenise:main",
        "trace": "shardwright.cli.trace:main",
        "check": "shardwright.cli.check:main",
        "run": "shardwright.cli.run:main",
        "weights": "shardwright.cli.weights:main",
        "export": "shardwright.cli.export:main",
        "serve-simulate": "shardwright.cli.serve_simulate:main",
        "validate": "shardwright.cli.validate:main",
        "calibrate": "shardwright.cli.calibrate:main",
        "cluster": "shardwright.cli.cluster:main",
        "schema": "shardwright.cli.schema:main",
        "catalog": "shardwright.cli.catalog:main",
    },
)
"""Functions from the words behind a verb to its exit code."""
