"""Megatron-Core's option values for memory: loss, kept activations, optimizer states, recompute."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.framework_description import Offer
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.runtime_from_sourced_statements import read, stated

_LM: Final = "https://github.com/NVIDIA/Megatron-LM/blob"
_CORE: Final = f"{_LM}/core_v0.12.0/megatron/core"
_MODULES: Final = f"{_CORE}/transformer/transformer_config.py"
_PRECISION_AWARE: Final = f"{_CORE}/optimizer/optimizer_config.py"
_FUSED_LOSS: Final = (
    f"{_LM}/0cb4a9c81767ff391c3b18ce171c4084ebbc4789/megatron/core/fusions/fused_cross_entropy.py"
)
_NATIVE_NOTE: Final = (
    "graphs of torch.compile: cast and maximum 6 bytes a logit; exponentials and their sum 8, into"
    " a fresh buffer that is copied back 8 (the file's note on in-place semantics, of what was so"
    " before it); division 8; gradient: a fresh copy to scatter into 8, scaled into bf16 and back"
    " 10. At the peak bf16 logits, the fp32 copy and the fresh buffer"
)
_TE_LOSS: Final = "https://github.com/MooreThreads/SimuMax/blob/1b8ca90bec07db48005ff04c69c002dc0626484f/docs/b200/b200_real_repro_guide.md"
LOSS_NOTE: Final = (
    "bf16 logits and one fp32 copy that becomes the softmax and then the gradient in place; passes"
    " over them as in 2021: 52 bytes a logit"
)

KEPT: Final = (
    option_offer(
        "gate_dtype",
        "activation",
        "",
        stated(_MODULES, off="saves_gates_eight_bit", note="the default"),
    ),
    option_offer(
        "gate_dtype",
        "fp8",
        "activation_func_fp8_input_store=True",
        stated(
            _MODULES,
            on="saves_gates_eight_bit",
            note=(
                "the input of a gated activation is kept in e4m3 and cast back before its backward"
            ),
        ),
    ),
    option_offer(
        "moments",
        "fp32",
        "",
        stated(
            _PRECISION_AWARE, off="moments", note="exp_avg_dtype and exp_avg_sq_dtype: the default"
        ),
    ),
    option_offer(
        "moments",
        "bf16",
        "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
        stated(
            _PRECISION_AWARE,
            moments=Dtype.BF16,
            note="dtypes of what is kept; the update computes in fp32",
        ),
    ),
)
RECOMPUTE: Final = tuple(
    option_offer(
        option,
        value,
        f"--recompute-granularity selective --recompute-modules {module}" if value == "on" else "",
        stated(
            _MODULES,
            on=field * (value == "on"),
            off=field * (value == "off"),
            note="recompute_modules: each under a checkpoint of its own",
        ),
    )
    for option, module, field in (
        ("recompute_norms", "layernorm", "rebuilds_norms"),
        ("recompute_mla", "mla_up_proj", "rebuilds_latent"),
        ("recompute_moe_act", "moe_act", "rebuilds_expert_activation"),
        ("recompute_mlp", "mlp", "rebuilds_mlp"),
        ("recompute_shared", "shared_experts", "rebuilds_shared_experts"),
        ("recompute_moe", "moe", "rebuilds_experts"),
    )
    for value in ("on", "off")
)


def loss_offers(plain: str, native: str, te: str) -> tuple[Offer, ...]:
    """Megatron-Core's cross-entropies as option values, with the three given launch flags."""
    return (
        option_offer(
            "loss",
            "plain",
            plain,
            stated(
                f"{_CORE}/tensor_parallel/cross_entropy.py",
                off="fused_loss",
                logits_bytes=6,
                loss_bytes=52,
                note=LOSS_NOTE,
            ),
        ),
        option_offer(
            "loss",
            "native",
            native,
            read(_FUSED_LOSS, on="fused_loss", logits_bytes=10, loss_bytes=48, note=_NATIVE_NOTE),
        ),
        option_offer(
            "loss",
            "te",
            te,
            read(
                _TE_LOSS,
                on="fused_loss",
                logits_bytes=6,
                loss_bytes=10,
                note=(
                    "Transformer Engine's Triton kernel: statistics 2, gradient in place of the"
                    " logits 4, scaled 4"
                ),
            ),
        ),
    )
