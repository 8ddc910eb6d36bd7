"""Megatron-Core's configuration fields and the Megatron-LM arguments that they are.

Source: Megatron-Core 0.19.2, megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

FIELD_NAMES: Final = MappingProxyType(
    {
        "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
        "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
        "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
        "activations-checkpoint-granularity": "recompute-granularity",
        "activations-checkpoint-method": "recompute-method",
        "activations-checkpoint-num-layers": "recompute-num-layers",
        "sequence-length": "seq-length",
        "encoder-seq-length": "seq-length",
        "ub-tp-comm-overlap": "tp-comm-overlap",
        "gradient-accumulation-fusion": "",
        "ffn-hidden-size": "ffn-hidden-size",
        "hidden-dropout": "hidden-dropout",
        "attention-dropout": "attention-dropout",
        "moe-router-topk": "moe-router-topk",
        "num-moe-experts": "num-experts",
        "layernorm-epsilon": "norm-epsilon",
        "rotary-percentage": "rotary-percent",
    }
)
"""Field names of several frameworks -> Megatron-LM's argument; empty = no effect."""


OF_RECIPES: Final = frozenset(
    {"model.tensor-model-parallel-size", "model.pipeline-model-parallel-size", "model.seq-length"}
)
"""Settings that NeMo and Megatron-Bridge share."""


def attention_backend(value: str) -> tuple[tuple[str, str], ...]:
    """Megatron-LM's ``attention-backend`` for Megatron-Core's; AttnBackend.flash_3 is ``flash``.

    ``AttnBackend.flash`` and ``flash_3`` are ``flash``.
    """
    name = value.rpartition(".")[2].lower()
    return (("attention-backend", "flash" if name.startswith("flash") else name),)


def without_section(name: str, sections: tuple[str, ...]) -> str:
    """Setting's name without its longest prefix of `sections`; unchanged if it has none."""
    section = max(
        (section for section in sections if name.startswith(section)), key=len, default=""
    )
    return name.removeprefix(section)
