"""Sizes of the models that published runs name without spelling them out, and the model graph of a row.

A row's own columns come first; a table entry fills what is empty. An entry without a size that the row lacks too is an unsupported model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from shardwright.calibrate.measurements import Measurement
from shardwright.errors import ModelError
from shardwright.hardware.device import Evidence, Origin
from shardwright.model.decoder import decoder_model
from shardwright.model.dense import decoder_block, embedding_block, head_block
from shardwright.model.fields import MAX_LAYERS
from shardwright.model.graph import Model
from shardwright.model.huggingface import model_from_config
from shardwright.model.operator import AttentionShape


class Family(StrEnum):
    """Forms of a decoder: what its norms, feed-forward, positions and biases are."""

    GPT = "gpt"
    LLAMA = "llama"
    NEMOTRON = "nemotron"
    CONFIG = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What is known of a model by name; 0 = not here.

    Args:
        names: of models in tables, lower case. config: a Hugging Face configuration, for `Family.CONFIG`.
        corrects_kv_heads: kv_heads here is right where a table says otherwise.
    """

    names: tuple[str, ...]
    family: Family
    origin: Origin
    layers: int = 0
    hidden: int = 0
    ffn: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocab: int = 0
    config: Mapping[str, Any] | None = None
    corrects_kv_heads: bool = False


def _published(reference: str) -> Origin:
    return Origin(evidence=Evidence.PUBLISHED, reference=reference)


def _memory(reference: str) -> Origin:
    return Origin(evidence=Evidence.ASSUMED, reference=f"from memory of {reference}")


_KORTHIKANTI: Final = _published("arXiv 2205.05198 table 3; vocabulary 51200 of Megatron-LM's GPT")
_SIMUMAX: Final = _published("MooreThreads/SimuMax configs/models at 4dcaae513ba7")
_NEMO: Final = _memory("NVIDIA NeMo-Framework-Launcher conf/training/gpt3")
_QWEN: Final = _published("Qwen3-30B-A3B and Qwen3-235B-A22B config.json (Hugging Face)")
_DEEPSEEK: Final = {
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
    "max_position_embeddings": 163840,
}

ARCHITECTURES: Final = (
    Architecture(names=("megatron-22b",), family=Family.GPT, origin=_KORTHIKANTI, vocab=51200),
    Architecture(
        names=("gpt3-175b", "nemo megatron"),
        family=Family.GPT,
        origin=_KORTHIKANTI,
        layers=96,
        hidden=12288,
        ffn=49152,
        heads=96,
        vocab=51200,
    ),
    Architecture(names=("turing-530b",), family=Family.GPT, origin=_KORTHIKANTI, vocab=51200),
    Architecture(names=("megatron-1t",), family=Family.GPT, origin=_KORTHIKANTI, vocab=51200),
    Architecture(names=("gpt3-5b",), family=Family.GPT, origin=_NEMO, layers=24, hidden=4096, ffn=16384, heads=32, vocab=51200),
    Architecture(names=("gpt3-20b",), family=Family.GPT, origin=_NEMO, layers=44, hidden=6144, ffn=24576, heads=48, vocab=51200),
    Architecture(
        names=("nemotron4 15b",),
        family=Family.NEMOTRON,
        origin=_published("arXiv 2402.16819 table 1"),
        layers=32,
        hidden=6144,
        ffn=24576,
        heads=48,
        kv_heads=8,
        vocab=256000,
    ),
    Architecture(
        names=("internlm-7b",),
        family=Family.LLAMA,
        origin=_published("InternEvo configs/7B_sft.py at 00de61348f53: mlp_ratio 8/3 rounded up to 256"),
        layers=32,
        hidden=4096,
        ffn=11008,
        heads=32,
        vocab=103168,
    ),
    Architecture(
        names=("internlm-20b",),
        family=Family.LLAMA,
        origin=_memory("internlm-20b config.json"),
        layers=60,
        hidden=5120,
        ffn=13824,
        heads=40,
        vocab=103168,
    ),
    Architecture(
        names=("llama2-70b", "maxtext llama2 70b"),
        family=Family.LLAMA,
        origin=_SIMUMAX,
        layers=80,
        hidden=8192,
        ffn=28672,
        heads=64,
        kv_heads=8,
        vocab=32000,
    ),
    Architecture(
        names=("llama3-405b", "llama-3.1-405b", "llama 3.1 405b"),
        family=Family.LLAMA,
        origin=_published("arXiv 2407.21783 table 3: 8 key heads; SimuMax's padded copy has 16"),
        kv_heads=8,
        corrects_kv_heads=True,
    ),
    Architecture(names=("llama3", "llama-3", "llama 3", "maxtext llama3", "llama2", "llama-2"), family=Family.LLAMA, origin=_SIMUMAX),
    Architecture(names=("mpt-",), family=Family.GPT, origin=_published("llm-foundry scripts/train/yamls/pretrain at 8c8dd48f7216")),
    Architecture(names=("gpt-", "gpt2-", "gpt"), family=Family.GPT, origin=_published("the row's own columns")),
    Architecture(
        names=("deepseekv2",),
        family=Family.CONFIG,
        origin=_SIMUMAX,
        config={
            **_DEEPSEEK,
            "architectures": ["DeepseekV2ForCausalLM"],
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "num_hidden_layers": 60,
            "vocab_size": 102400,
        },
    ),
    Architecture(
        names=("deepseekv3",),
        family=Family.CONFIG,
        origin=_SIMUMAX,
        config={
            **_DEEPSEEK,
            "architectures": ["DeepseekV3ForCausalLM"],
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "num_hidden_layers": 61,
            "num_nextn_predict_layers": 1,
            "vocab_size": 129280,
        },
    ),
    Architecture(
        names=("qwen3_30b_a3b", "qwen3-30b-a3b"),
        family=Family.CONFIG,
        origin=_QWEN,
        config={
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "max_position_embeddings": 40960,
        },
    ),
    Architecture(
        names=("qwen3_235b_a22b", "qwen3-235b-a22b"),
        family=Family.CONFIG,
        origin=_QWEN,
        config={
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "max_position_embeddings": 40960,
        },
    ),
)


def architecture_of(name: str) -> Architecture | None:
    """The entry whose name starts `name` (the longest such name wins); None if there is none."""
    word = name.strip().lower()
    found = [(len(start), -i) for i, a in enumerate(ARCHITECTURES) for start in a.names if word.startswith(start)]
    return ARCHITECTURES[-max(found)[1]] if found else None


def model_of(row: Measurement, *, architecture: Architecture) -> Model | str:
    """The model graph of a row, or the name of the size that is missing.

    Sizes come from the row's columns, else from `architecture`; a feed-forward width that neither gives is 4 x hidden in the GPT family,
    key heads that neither gives are as many as the query heads.
    """
    if architecture.family is Family.CONFIG:
        return _from_config(row, architecture)
    sizes = {
        "layers": row.layers or architecture.layers,
        "hidden": row.hidden or architecture.hidden,
        "heads": row.heads or architecture.heads,
        "vocab": row.vocab or architecture.vocab,
        "seq_len": row.seq_len or 0,
    }
    missing = next((size for size, value in sizes.items() if not value), "")
    if not missing and architecture.family is not Family.GPT and not (row.ffn_hidden or architecture.ffn):
        missing = "ffn_hidden"
    if missing:
        return missing
    if sizes["hidden"] % sizes["heads"]:
        return "heads"
    if sizes["layers"] > MAX_LAYERS:
        return "layers"
    ffn = row.ffn_hidden or architecture.ffn or 4 * sizes["hidden"]
    kv_heads = architecture.kv_heads if architecture.corrects_kv_heads else row.kv_heads or architecture.kv_heads
    return _dense(row.model_name, family=architecture.family, ffn=ffn, kv_heads=kv_heads, **sizes)


def _dense(name: str, *, family: Family, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, seq_len: int) -> Model:
    """The decoder of a family.

    GPT: LayerNorm, GELU, biases, learned positions, tied. Llama: RMSNorm, SwiGLU, rotary, untied. Nemotron: LayerNorm, squared ReLU, rotary
    and untied.
    """
    gpt = family is Family.GPT
    width = hidden // heads
    shape = AttentionShape(heads=heads, kv_heads=kv_heads or heads, head_dim=width, value_dim=width)
    block = decoder_block(
        "layer",
        hidden=hidden,
        attention=shape,
        ffn=ffn,
        gated=family is Family.LLAMA,
        norm_bias=family is not Family.LLAMA,
        attention_bias=gpt,
        output_bias=gpt,
        mlp_bias=gpt,
        rotary=not gpt,
    )
    return decoder_model(
        name,
        architecture=family.value,
        embed=embedding_block(hidden=hidden, vocab=vocab, positions=seq_len if gpt else 0),
        layers=(block,) * layers,
        head=head_block(hidden=hidden, vocab=vocab, tied=gpt, norm_bias=family is not Family.LLAMA),
        hidden=hidden,
        vocab=vocab,
        max_context=seq_len,
    )


def _from_config(row: Measurement, architecture: Architecture) -> Model | str:
    config = dict(architecture.config or {})
    if row.layers:
        config["num_hidden_layers"] = row.layers
    if "w/o mtp" in row.model_name.lower():
        config["num_nextn_predict_layers"] = 0
    try:
        return model_from_config(config, name=row.model_name)
    except ModelError as error:
        return error.message
