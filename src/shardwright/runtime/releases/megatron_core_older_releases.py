"""Megatron-Core 0.5 to 0.11, each derived from the next release without its new features.

The features of a release were read in the command line of its tag (megatron/training/arguments.py,
before 0.6 megatron/arguments.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from shardwright.runtime.framework_description import Offer, Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ExpertDispatch,
)
from shardwright.runtime.releases.megatron_core import V0_12
from shardwright.runtime.runtime_from_sourced_statements import (
    Statement,
    derive,
    identity_fields,
    read,
    stated,
)

_LM: Final = "https://github.com/NVIDIA/Megatron-LM/blob"
_ATTENTION: Final = "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/attention/attention.html"


def _arguments_link(release: str) -> str:
    """Link to the source file of a Megatron-Core release that defines its command line."""
    folder = "megatron" if release == "0.5" else "megatron/training"
    return f"{_LM}/core_v{release}.0/{folder}/arguments.py"


def _offers_without(
    base: Runtime,
    options: Collection[str] = (),
    values: Mapping[str, Collection[str]] | None = None,
) -> tuple[Offer, ...]:
    """Option values of a release without some options, and without some values of others."""
    lacking = values or {}
    return tuple(
        offer
        for offer in base.offers
        if offer.option not in options and offer.value not in lacking.get(offer.option, ())
    )


_RECOMPUTED: Final = tuple(
    offer
    for offer in dict.fromkeys(offer.option for offer in V0_12.offers)
    if offer.startswith("recompute_")
)
_WITH_0_12: Final = stated(
    f"{_LM}/core_v0.11.0/megatron/training/arguments.py",
    off="optimizer_offload",
    checked=True,
    zero_stages=(0, 1),
    note=(
        "--optimizer-cpu-offload and --use-custom-fsdp with its sharding strategies came with 0.12"
    ),
)
# 0.11: offer fp8 recipe, no modules that are recomputed alone, no DeepEP, no Transformer Engine
# cross-entropy, gradients in fp32.
V0_11: Final = derive(
    V0_12,
    identity_fields("megatron-core-0.11", version="0.11", released="2025-03"),
    _WITH_0_12,
    read(
        f"{_LM}/core_v0.11.0/megatron/core/transformer/transformer_block.py",
        on="equal_between",
        note=(
            "get_num_layers_to_build: num_layers_in_first_pipeline_stage and _in_last_, or"
            " embedding and loss count as a layer each; the layers between have to divide by their"
            " stages. No layout"
        ),
    ),
    offers=_offers_without(
        V0_12,
        ("router_fusion", *_RECOMPUTED),
        {
            "dispatcher": ("flex",),
            "loss": ("te",),
            "fp8": ("current", "mx", "blockwise"),
            "grad_dtype": ("bf16",),
            "gate_dtype": ("fp8",),
        },
    ),
)
# 0.10: no fused permutation, no embedding or head that counts as a layer, moments in 32 bits, no
# choice of the attention's kernel.
V0_10: Final = derive(
    V0_11,
    identity_fields("megatron-core-0.10", version="0.10", released="2025-02"),
    offers=_offers_without(V0_11, ("permute_fusion", "moments", "attention")),
)
# 0.9: no gathered context and no Ulysses, offer distributed optimizer over all replicas.
V0_9: Final = derive(
    V0_10,
    identity_fields("megatron-core-0.9", version="0.9", released="2024-10"),
    read(
        _arguments_link("0.9"),
        on="ties_experts",
        off="context_gather context_ulysses hybrid_sharding",
        note=(
            "--cp-comm-type, --num-distributed-optimizer-instances and"
            " --expert-tensor-parallel-size came with 0.10: context parallelism is a ring, and"
            " experts are cut over tp as layers are"
        ),
    ),
    offers=V0_10.offers,
)
# 0.8: 8-bit parameters are gathered in 16 bits; FlashAttention-2 was preferred, as of NeMo 24.07,
# which is of that month.
V0_8: Final = derive(
    V0_9,
    identity_fields("megatron-core-0.8", version="0.8", released="2024-08"),
    stated(
        _ATTENTION,
        attention_kernel=AttentionKernel.FLASH_2,
        note="flash-attention 2 was preferred before cuDNN became the default",
    ),
    read(
        _arguments_link("0.8"),
        on="equal_stages",
        note=(
            "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers came with"
            " 0.9: stages have as many layers each"
        ),
    ),
    offers=_offers_without(V0_9, ("fp8_gather",)),
)
# 0.7: cross-entropy in parts, and gradients that are scaled in their buffer.
V0_7: Final = derive(
    V0_8,
    identity_fields("megatron-core-0.7", version="0.7", released="2024-05"),
    offers=_offers_without(V0_8, (), {"loss": ("native",), "grad_average": ("collective",)}),
)
# 0.6: no capacity of experts; its all-to-all dispatcher was new.
V0_6: Final = derive(
    V0_7,
    identity_fields("megatron-core-0.6", version="0.6", released="2024-04"),
    offers=_offers_without(V0_7, ("capacity",)),
)
_GATHERED: Final[Statement] = read(
    f"{_LM}/core_v0.5.0/megatron/core/transformer/moe/token_dispatcher.py",
    expert_dispatch=ExpertDispatch.GATHERED,
    note=(
        "MoEDroplessTokenDispatcher is the one there is: tokens are gathered over the devices that"
        " share experts"
    ),
)
# 0.5: tokens are gathered.
V0_5: Final = derive(
    V0_6,
    identity_fields("megatron-core-0.5", version="0.5", released="2024-02"),
    _GATHERED,
    offers=_offers_without(V0_6, (), {"dispatcher": ("alltoall",)}),
)
