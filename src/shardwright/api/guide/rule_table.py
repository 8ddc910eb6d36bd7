"""The rules of the training guide, in the order in which people ask."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule import GuideRule
from shardwright.api.guide.rules import (
    checkpoint_interval,
    context_parallel_length,
    data_parallel_bound,
    data_parallelism_first,
    does_it_fit,
    domain_divisors,
    expert_degrees,
    experts_inside_domain,
    largest_tensor_parallel_degree,
    longer_sequences,
    microbatch_size,
    pipeline_bubble,
    recompute_or_not,
    recompute_or_offload,
    recomputed_modules,
    ring_or_ulysses,
    sequence_parallel,
    shard_inside_node,
    spare_nodes,
    starting_point_by_size,
    technique_by_device_count,
    tensor_parallel_limit,
    training_compute,
    twice_the_devices,
    uneven_stages,
    virtual_stages,
)

RULES: Final[tuple[GuideRule, ...]] = (
    does_it_fit.RULE,
    training_compute.RULE,
    data_parallelism_first.RULE,
    starting_point_by_size.RULE,
    technique_by_device_count.RULE,
    tensor_parallel_limit.RULE,
    largest_tensor_parallel_degree.RULE,
    sequence_parallel.RULE,
    domain_divisors.RULE,
    data_parallel_bound.RULE,
    shard_inside_node.RULE,
    context_parallel_length.RULE,
    ring_or_ulysses.RULE,
    pipeline_bubble.RULE,
    virtual_stages.RULE,
    uneven_stages.RULE,
    recompute_or_not.RULE,
    recomputed_modules.RULE,
    recompute_or_offload.RULE,
    microbatch_size.RULE,
    expert_degrees.RULE,
    experts_inside_domain.RULE,
    twice_the_devices.RULE,
    longer_sequences.RULE,
    checkpoint_interval.RULE,
    spare_nodes.RULE,
)
"""A rule is one module of `api.guide.rules`; its line here adds it to the guide."""
