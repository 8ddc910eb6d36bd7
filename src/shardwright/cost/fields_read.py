"""A problem as one part of pricing reads it: the same object for problems that differ only in
fields of the runtime that the part ignores.

Caches know problems by identity, so what was priced under one runtime then serves another runtime
that prices it alike. Most options of a runtime change either what blocks take, or what is summed
and gathered over devices, or neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.problem import Problem
from shardwright.program.same import Same, one_of_equals
from shardwright.runtime.runtime import AttentionKernel, Capture, ExpertDispatch, Runtime

Fields = Mapping[str, object]
"""Fields of `Runtime` that a part of pricing ignores, each with the value that stands for all."""

NAMES: Final[Fields] = MappingProxyType(
    {"name": "", "base": "", "facts": (), "offers": (), "own": (), "options": (), "schedules": ()}
)
"""What a runtime is called, and what it could be besides: no price reads them."""
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
"""What only the composition of a step, its order or its memory reads."""
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
"""What no block's kernels, communication or kept tensors depend on."""
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
"""What the sums and gathers over devices do not depend on."""
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
    """The problem as the pricing of a block reads it."""
    return _block_problem(Same(problem), Same(block))


@lru_cache(maxsize=4096)
def _block_problem(problem: Same[Problem], block: Same[Block]) -> Problem:
    return _ignoring(problem, _of_block(block), narrow=_is_narrow(problem.value))


def sums_problem(problem: Problem) -> Problem:
    """The problem as the pricing of sums and gathers over devices reads it."""
    return _ignoring(Same(problem), tuple(BESIDE_SUMS.items()), narrow=_is_narrow(problem))


def _is_narrow(problem: Problem) -> bool:
    """Some GEMMs read fewer bits than activations have."""
    return problem.job.compute.bits < max(Dtype.BF16.bits, problem.job.activation.bits)


@lru_cache(maxsize=256)
def _of_block(block: Same[Block]) -> tuple[tuple[str, object], ...]:
    """Fields that a block of these operators ignores."""
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
def _ignoring(
    problem: Same[Problem], fields: tuple[tuple[str, object], ...], *, narrow: bool
) -> Problem:
    values: dict[str, Any] = {name: getattr(problem.value.runtime, name) for name in _FIELDS}
    values |= dict(fields) if narrow else {**dict(fields), **_OF_NARROW}
    # Runtimes are hashed by their names.
    runtime = Runtime(**{**values, "name": str(hash(tuple(values.values())))})
    return one_of_equals(replace(problem.value, runtime=runtime))
