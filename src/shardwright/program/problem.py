"""A problem: what is to be planned."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.hardware.catalog.constants import SHIPPED, Constants
from shardwright.hardware.cluster import Cluster
from shardwright.job.training import TrainingJob
from shardwright.model.ir.graph import Model
from shardwright.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A model to train on a cluster, as a job, by a runtime. `constants`: the fitted ones; others than the shipped are for fits."""

    model: Model
    cluster: Cluster
    job: TrainingJob
    runtime: Runtime
    constants: Constants = SHIPPED
