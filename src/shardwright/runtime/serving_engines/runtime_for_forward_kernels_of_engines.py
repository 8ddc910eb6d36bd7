"""Runtime whose kernels stand for the forward pass of every serving engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    Capture,
    ElementKernels,
    ExpertDispatch,
    TpOverlap,
)
from shardwright.runtime.releases.megatron_core import V0_16

FORWARD: Final[Runtime] = replace(
    V0_16,
    name="forward",
    framework="serving engine",
    attention_kernel=AttentionKernel.FLASH_3,
    element_kernels=ElementKernels.FUSED,
    fused_chains=True,
    fused_experts=True,
    row_kernels=True,
    router_kernels=1,
    expert_dispatch=ExpertDispatch.DEDUPLICATED,
    expert_overlap=False,
    tp_overlap=TpOverlap.NONE,
    capture=Capture.NONE,
    offers=(),
    facts=(),
)
"""All engines have one kernel for a norm with its residual, for a gated activation, for rotary
embeddings, and for the choice of experts."""
