"""The verbs of the command line with their help lines; a verb's module is imported when called."""

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
    "report": "write an answer's file as one HTML page",
    "web": "answer in a browser on this machine, with the search to watch",
    "guide": "show which rules of thumb hold for a model on a cluster",
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
        "plan": "shardwright.cli.verbs.plan:main",
        "simulate": "shardwright.cli.verbs.simulate:main",
        "compare": "shardwright.cli.verbs.compare:main",
        "explain": "shardwright.cli.verbs.explain:main",
        "why": "shardwright.cli.verbs.why:main",
        "advise": "shardwright.cli.verbs.advise:main",
        "draw": "shardwright.cli.verbs.draw:main",
        "report": "shardwright.cli.verbs.report:main",
        "web": "shardwright.cli.verbs.web:main",
        "guide": "shardwright.cli.verbs.guide:main",
        "tokenise": "shardwright.cli.verbs.tokenise:main",
        "trace": "shardwright.cli.verbs.trace:main",
        "check": "shardwright.cli.verbs.check:main",
        "run": "shardwright.cli.verbs.run:main",
        "weights": "shardwright.cli.verbs.weights:main",
        "export": "shardwright.cli.verbs.export:main",
        "serve-simulate": "shardwright.cli.verbs.serve_simulate:main",
        "validate": "shardwright.cli.verbs.validate:main",
        "calibrate": "shardwright.cli.verbs.calibrate:main",
        "cluster": "shardwright.cli.verbs.cluster:main",
        "schema": "shardwright.cli.verbs.schema:main",
        "catalog": "shardwright.cli.verbs.catalog:main",
    },
)
"""Function of each verb: from the words after the verb to the exit code."""
