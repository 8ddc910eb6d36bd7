"""A problem: what is to be planned."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.hardware.cluster import Cluster
from shardwright.job.training import TrainingJob
from shardwright.model.graph import Model
from shardwright.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A model to train on a cluster, as a job, by a runtime."""

    model: Model
    cluster: Cluster
    job: TrainingJob
    runtime: Runtime
