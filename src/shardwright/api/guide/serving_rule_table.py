"""The rules of the serving guide, in the order in which people ask."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.serving_rule import ServingRule
from shardwright.api.guide.serving_rules import (
    batch_knee,
    cache_capacity,
    expert_or_tensor_parallel,
    prefill_apart,
    smallest_worker,
    tensor_or_data_attention,
    tensor_or_pipeline,
)

SERVING_RULES: Final[tuple[ServingRule, ...]] = (
    cache_capacity.RULE,
    smallest_worker.RULE,
    batch_knee.RULE,
    tensor_or_pipeline.RULE,
    tensor_or_data_attention.RULE,
    expert_or_tensor_parallel.RULE,
    prefill_apart.RULE,
)
"""A rule is one module of `api.guide.serving_rules`; its line here adds it to the guide."""
