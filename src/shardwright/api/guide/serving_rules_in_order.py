"""The rules of the serving guide, in the order in which people ask."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.serving_rule_and_advice_classes import ServingRule
from shardwright.api.guide.serving_rules import decode_batch_where_compute_bound as batch_knee
from shardwright.api.guide.serving_rules import expert_or_tensor_parallel
from shardwright.api.guide.serving_rules import prefill_on_separate_workers as prefill_apart
from shardwright.api.guide.serving_rules import (
    replicas_of_smallest_worker_or_wide_tensor as smallest_worker,
)
from shardwright.api.guide.serving_rules import requests_that_fit_in_kv_cache as cache_capacity
from shardwright.api.guide.serving_rules import (
    tensor_or_data_parallel_attention as tensor_or_data_attention,
)
from shardwright.api.guide.serving_rules import (
    tensor_or_pipeline_by_link_speed as tensor_or_pipeline,
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
