"""The rules of the training guide, in the order in which people ask."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule_and_advice_classes import GuideRule
from shardwright.api.guide.rules import (
    checkpoint_interval,
    data_parallelism_first,
    experts_inside_domain,
    ring_or_ulysses,
    sequence_parallel,
    shard_inside_node,
    spare_nodes,
    technique_by_device_count,
    uneven_stages,
    virtual_stages,
)
from shardwright.api.guide.rules import (
    context_parallelism_by_sequence_length as context_parallel_length,
)
from shardwright.api.guide.rules import do_model_states_fit_under_data_parallelism as does_it_fit
from shardwright.api.guide.rules import expert_tensor_pipeline_degrees_of_moe as expert_degrees
from shardwright.api.guide.rules import keep_degrees_on_twice_the_devices as twice_the_devices
from shardwright.api.guide.rules import microbatch_large_or_small_with_pipeline as microbatch_size
from shardwright.api.guide.rules import offload_or_recompute_by_host_link as recompute_or_offload
from shardwright.api.guide.rules import pipeline_or_not_by_bubble as pipeline_bubble
from shardwright.api.guide.rules import power_of_two_devices_per_domain as domain_divisors
from shardwright.api.guide.rules import (
    recompute_latent_attention_or_expert_modules as recomputed_modules,
)
from shardwright.api.guide.rules import (
    recompute_only_where_activations_do_not_fit as recompute_or_not,
)
from shardwright.api.guide.rules import (
    scale_context_parallel_with_sequence_length as longer_sequences,
)
from shardwright.api.guide.rules import starting_degrees_by_model_size as starting_point_by_size
from shardwright.api.guide.rules import step_flop_as_six_per_parameter_and_token as training_compute
from shardwright.api.guide.rules import tensor_parallelism_inside_domain as tensor_parallel_limit
from shardwright.api.guide.rules import (
    tokens_per_device_for_data_parallel_alone as data_parallel_bound,
)
from shardwright.api.guide.rules import (
    whole_node_tensor_parallel_large_models as largest_tensor_parallel_degree,
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
