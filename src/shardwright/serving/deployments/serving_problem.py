"""Serving problem: model, cluster, traffic and engine."""

from __future__ import annotations

from shardwright.hardware.catalog.fitted_serving_constants import SERVING, ServingConstants
from shardwright.hardware.cluster import Cluster
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import ServingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.serving_engines.serving_engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProblem:
    """A model to serve on a cluster, under a job's traffic, by an engine.

    `constants` other than the shipped ones are for fits.
    """

    model: Model
    cluster: Cluster
    job: ServingJob
    engine: Engine
    constants: ServingConstants = SERVING
