"""The problem reduced to the runtime fields that one part of the cost model reads.

Two problems that differ only in runtime fields that the part ignores are reduced to the same
object. The caches of the cost model look problems up by identity. So a cost that was computed under
one runtime is reused under another runtime that gives the same cost. Most options of a runtime
change either the cost of blocks, or that of gradient reduction and parameter all-gather, or
neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from shardwright.cost.part_phase_recompute_keys import PARTS
from shardwright.dtype import Dtype
from shardwright.hardware.scale_network_limit_devices_reserve_memory import limit_devices
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.identity_cache_keys import Same, one_of_equals
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    Capture,
    ExpertDispatch,
)

Fields = Mapping[str, object]
"""Fields of `Runtime` that a part of the cost model ignores, each with the one value that replaces
every other value in the reduced problem."""

NAMES: Final[Fields] = MappingProxyType(
    {"name": "", "base": "", "facts": (), "offers": (), "own": (), "options": (), "schedules": ()}
)
"""Fields that name and document a runtime (name, links, options, schedules): no part of the cost
model reads them."""
_FIELDS: Final = tuple(field.name for field in fields_of(Runtime))
_STEP: Final[Fields] = MappingProxyType(
    {
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "overlap_p2p": False,
        "plain_p2p_blocks": False,
        "gather_prefetch": 0,
        "reduce_every_microbatch": False,
        "workspace_bytes": 0,
        "allocator_reserve_percent": 0,
        "logits_bytes": 0,
        "logits_blocks_bytes": 0,
        "split_logits_bytes": 0,
        "reuse_elements": 0,
        "host_gradient_bytes": 0,
        "host_buffer_percent": 0,
    }
)
"""Fields that change only the overlap and order of tasks in a step, or its memory: neither the cost
of a block nor that of a collective reads them."""
BESIDE_BLOCKS: Final[Fields] = MappingProxyType(
    {
        **NAMES,
        **_STEP,
        "bucket_bytes": 0,
        "gradient_passes": 0,
        "scales_gradients": False,
        "gradient_wire": None,
        "gather_bucket_bytes": 0,
        "listed_collectives": False,
        "sums_replicas_apart": False,
        "gather_copy_bytes": 0,
        "reduce_copy_bytes": 0,
        "zero1_broadcasts": False,
        "embedding_gradient_bytes": 0,
    }
)
"""Fields that change neither the kernels of a block, nor the communication in it, nor the
activations that it saves for backward."""
BESIDE_SUMS: Final[Fields] = MappingProxyType(
    {
        **NAMES,
        **_STEP,
        "attention_kernel": AttentionKernel.UNFUSED,
        "attention_eight_bit": False,
        "fused_loss": False,
        "loss_bytes": 0,
        "fused_weight_gradient": False,
        "adds_gradients": False,
        "router_kernels": 0,
        "row_kernels": False,
        "fused_experts": False,
        "capture": Capture.NONE,
        "rebuilds_latent": False,
        "rebuilds_norms": False,
        "rebuilds_expert_activation": False,
        "rebuilds_mlp": False,
        "rebuilds_shared_experts": False,
        "rebuilds_experts": False,
        "kept_outputs": (),
        "host_outputs": (),
    }
)
"""Fields that change neither the gradient reduction (all-reduce or reduce-scatter) nor the
parameter all-gather over replicas."""
_PARTS_OF_BLOCKS: Final = frozenset((*PARTS, "recompute"))
_PARTS_OF_SUMS: Final = frozenset(("sharding", "scales", "optimizer"))
_OF_LOSS: Final[Fields] = MappingProxyType({"fused_loss": False, "loss_bytes": 0})
_OF_ATTENTION: Final[Fields] = MappingProxyType(
    {"attention_kernel": AttentionKernel.UNFUSED, "attention_eight_bit": False}
)
_OF_EXPERTS: Final[Fields] = MappingProxyType(
    {
        "router_kernels": 0,
        "expert_dispatch": ExpertDispatch.ALL_TO_ALL,
        "hybrid_dispatch": False,
        "dispatches_eight_bit": False,
        "fixed_capacity": False,
        "routing_on_host": False,
    }
)
_OF_ROWS: Final[Fields] = MappingProxyType({"row_kernels": False})
_OF_NARROW: Final[Fields] = MappingProxyType({"saves_quantized": False})


def block_problem(problem: Problem, block: Block) -> Problem:
    """The problem reduced to the runtime fields that the cost of `block` depends on."""
    return _block_problem(Same(problem), Same(block))


@lru_cache(maxsize=4096)
def _block_problem(problem: Same[Problem], block: Same[Block]) -> Problem:
    """The problem reduced to the runtime fields that a block's cost depends on (cached)."""
    return _with_fixed_fields(
        Same(with_free_parts_of_blocks(problem.value)),
        _irrelevant_fields(block),
        few_bits=_is_narrow(problem.value),
    )


def sums_problem(problem: Problem) -> Problem:
    """The problem reduced to the runtime fields that gradient reduction costs depend on.

    Parameter all-gather too.
    """
    return _with_fixed_fields(
        Same(with_free_parts_of_sums(problem)),
        tuple(BESIDE_SUMS.items()),
        few_bits=_is_narrow(problem),
    )


def with_free_parts_of_blocks(problem: Problem) -> Problem:
    """The problem with only those of its free parts that a block's cost depends on."""
    return _with_free_parts_among(problem, _PARTS_OF_BLOCKS) if problem.free_parts else problem


def with_free_parts_of_sums(problem: Problem) -> Problem:
    """The problem with only those of its free parts that costs beside the blocks depend on.

    Gradient reduction, parameter all-gather, the update and the reduction of scales.
    """
    return _with_free_parts_among(problem, _PARTS_OF_SUMS) if problem.free_parts else problem


def _with_free_parts_among(problem: Problem, parts: frozenset[str]) -> Problem:
    """The problem with only those of its free parts that are in `parts`, one object for equals."""
    if problem.free_parts <= parts:
        return problem
    return _with_free_parts(Same(problem), problem.free_parts & parts)


@lru_cache(maxsize=256)
def _with_free_parts(problem: Same[Problem], free_parts: frozenset[str]) -> Problem:
    """The problem with other free parts, one object for equals (cached)."""
    return one_of_equals(replace(problem.value, free_parts=free_parts))


def _is_narrow(problem: Problem) -> bool:
    """True if GEMMs compute in fewer bits than the larger of BF16 and the activations' dtype."""
    return problem.job.compute.bits < max(Dtype.BF16.bits, problem.job.activation.bits)


@lru_cache(maxsize=256)
def _irrelevant_fields(block: Same[Block]) -> tuple[tuple[str, object], ...]:
    """Runtime fields that this block's cost does not depend on, each with the value to fix it at.

    The fields of the loss, attention, experts and row kernels are among them where the block has no
    operator of that kind.
    """
    operators = block.value.operators
    fields = dict(BESIDE_BLOCKS)
    has_loss = any(o.kind is OperatorKind.LOSS for o in operators)
    has_experts = any(o.experts is not None for o in operators)
    if not has_loss:
        fields.update(_OF_LOSS)
    if not any(o.attention is not None for o in operators):
        fields.update(_OF_ATTENTION)
    if not has_experts:
        fields.update(_OF_EXPERTS)
    if not (has_experts or has_loss):
        fields.update(_OF_ROWS)
    return tuple(fields.items())


@lru_cache(maxsize=4096)
def _with_fixed_fields(
    problem: Same[Problem], fields: tuple[tuple[str, object], ...], *, few_bits: bool
) -> Problem:
    """The problem with runtime fields fixed (`saves_quantized` too without `few_bits`), cached."""
    values: dict[str, Any] = {name: getattr(problem.value.runtime, name) for name in _FIELDS}
    values |= dict(fields) if few_bits else {**dict(fields), **_OF_NARROW}
    # A runtime is hashed by its name alone, so the name here is a hash of all values.
    runtime = Runtime(**{**values, "name": str(hash(tuple(values.values())))})
    return one_of_equals(replace(problem.value, runtime=runtime))


@lru_cache(maxsize=256)
def _on_one_node(problem: Same[Problem]) -> Problem:
    """The problem with global batch 1 on the first node, one object for equals (cached)."""
    cluster, job = problem.value.cluster, problem.value.job
    one_node = replace(limit_devices(cluster, num_devices=cluster.node.num_devices), expression="")
    return one_of_equals(replace(problem.value, cluster=one_node, job=replace(job, global_batch=1)))


def on_one_node(problem: Problem) -> Problem:
    """The problem with global batch 1 on the first node: a common key for caches of block costs.

    The same object for problems that differ in nothing else, as values cached for problems are
    cached by identity.
    """
    return _on_one_node(Same(problem))
