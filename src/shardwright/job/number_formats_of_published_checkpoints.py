"""Number formats of published checkpoints for each class of GEMMs, with their sources.

The short name of a format does not define them. The FP8 checkpoint of DeepSeek-R1 has FP8 in all
GEMMs but the head; NVIDIA's FP4 checkpoint of it keeps the attention projections in 16 bits, but
for the output projection; gpt-oss has four bits in its experts alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    NumberFormat,
    OperatorPrecision,
    Precision,
)
from shardwright.lazily_compiled_dataclass import dataclass

BF16: Final = OperatorPrecision()
FP8: Final = OperatorPrecision(weights=NumberFormat.FP8, activations=NumberFormat.FP8)
NVFP4: Final = OperatorPrecision(weights=NumberFormat.NVFP4, activations=NumberFormat.NVFP4)
MXFP4: Final = OperatorPrecision(weights=NumberFormat.MXFP4, activations=NumberFormat.BF16)
MXFP4_FP8: Final = OperatorPrecision(weights=NumberFormat.MXFP4, activations=NumberFormat.FP8)
INT4: Final = OperatorPrecision(weights=NumberFormat.INT4_GROUP_32, activations=NumberFormat.BF16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A published quantised checkpoint, or several with the same number formats.

    Args:
        names: published names, in lower case.
        models: catalog names of the models that it belongs to.
        words: short names of its format in tables, where it is the usual checkpoint of the models.
        originals: the models whose weights were first published in this format.
        precision: its formats.
        with_fp4_units: its formats on devices that multiply in four bits, where they differ.
        source: source of the formats.
    """

    names: tuple[str, ...]
    models: tuple[str, ...]
    words: tuple[str, ...]
    originals: tuple[str, ...] = ()
    precision: Precision
    with_fp4_units: Precision | None = None
    source: str

    def formats(self, *, fp4_units: bool) -> Precision:
        """Number formats on a device with, or without, units that multiply in four bits.

        A device without them casts four-bit weights to bf16 and multiplies in that.
        """
        if fp4_units:
            return self.with_fp4_units or self.precision
        formats = self.precision
        return replace(
            formats,
            mlp=_without_fp4(formats.mlp),
            experts=_without_fp4(formats.experts),
            attention=_without_fp4(formats.attention),
        )


def _without_fp4(formats: OperatorPrecision) -> OperatorPrecision:
    """Number formats with bf16 activations in place of NVFP4 ones."""
    if formats.activations is not NumberFormat.NVFP4:
        return formats
    return replace(formats, activations=NumberFormat.BF16)


_ALL_FP8: Final = Precision(attention=FP8, mlp=FP8, experts=FP8)
_ALL_FP8_KV: Final = replace(_ALL_FP8, kv=NumberFormat.FP8)
_ALL_NVFP4_KV: Final = Precision(attention=NVFP4, mlp=NVFP4, experts=NVFP4, kv=NumberFormat.FP8)
_EXPERTS_MXFP4: Final = Precision(experts=MXFP4)
_R1: Final = ("deepseek-r1", "deepseek-v3")
_LLAMA: Final = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.3-70b",
    "llama-3.1-405b",
    "llama-4-scout-text",
    "llama-4-maverick-text",
)

CHECKPOINTS: Final = (
    Checkpoint(
        names=(
            "deepseek-ai/deepseek-r1",
            "deepseek-ai/deepseek-r1-0528",
            "deepseek-ai/deepseek-v3",
            "deepseek-ai/deepseek-v3.1",
        ),
        models=_R1,
        words=("fp8",),
        originals=_R1,
        precision=_ALL_FP8,
        source=(
            "config.json: fp8 e4m3, blocks of 128 x 128, activations in groups of 128; embedding,"
            " head, norms and router are not (deepseek-ai/DeepSeek-V3, README_WEIGHTS.md)"
        ),
    ),
    Checkpoint(
        names=(
            "nvidia/deepseek-r1-0528-fp4-v2",
            "nvidia/deepseek-r1-fp4-v2",
            "nvidia/deepseek-v3.1-nvfp4",
            "nvidia/deepseek-r1-nvfp4",
        ),
        models=_R1,
        words=("fp4", "nvfp4"),
        precision=Precision(
            attention=BF16, output=NVFP4, mlp=NVFP4, experts=NVFP4, kv=NumberFormat.FP8
        ),
        source=(
            "model card: beside what the first FP4 checkpoint quantises, the attention's wo; runs"
            " of InferenceX load it"
        ),
    ),
    Checkpoint(
        names=("nvidia/deepseek-r1-0528-fp4",),
        models=_R1,
        words=(),
        precision=Precision(attention=BF16, mlp=NVFP4, experts=NVFP4, kv=NumberFormat.FP8),
        source=(
            "tensors of the checkpoint: U8 in mlp, experts and shared experts, BF16 in self_attn,"
            " embedding and head; the FP8 cache is on by default (TensorRT-LLM,"
            " Best_perf_practice_on_DeepSeek-R1)"
        ),
    ),
    Checkpoint(
        names=("nvidia/deepseek-r1-fp4",),
        models=_R1,
        words=(),
        precision=Precision(attention=BF16, mlp=NVFP4, experts=NVFP4),
        source=(
            "as nvidia/DeepSeek-R1-0528-FP4; its cache is in 16 bits (TensorRT-LLM,"
            " Best_perf_practice_on_DeepSeek-R1)"
        ),
    ),
    Checkpoint(
        names=("openai/gpt-oss-120b", "openai/gpt-oss-20b"),
        models=("gpt-oss-120b", "gpt-oss-20b"),
        words=("fp4", "mxfp4", "fp8"),
        originals=("gpt-oss-120b", "gpt-oss-20b"),
        precision=_EXPERTS_MXFP4,
        with_fp4_units=replace(_EXPERTS_MXFP4, experts=MXFP4_FP8),
        source=(
            "config.json: mxfp4, but attention, router, embedding and head; engines multiply in"
            " bf16 on Hopper and cast tokens to mxfp8 on Blackwell (vLLM's recipe for gpt-oss)."
            " Tables that call it fp8 mean the cache or the activations: there is no FP8 checkpoint"
        ),
    ),
    Checkpoint(
        names=(
            "qwen/qwen3-235b-a22b-fp8",
            "qwen/qwen3-30b-a3b-fp8",
            "qwen/qwen3-32b-fp8",
            "nvidia/qwen3-235b-a22b-fp8",
        ),
        models=("qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-32b"),
        words=("fp8",),
        precision=_ALL_FP8,
        source=(
            "config.json: fp8 e4m3, blocks of 128 x 128; embedding, head, norms and routers are not"
        ),
    ),
    Checkpoint(
        names=(
            "nvidia/qwen3-235b-a22b-fp4",
            "nvidia/qwen3-30b-a3b-fp4",
            "nvidia/qwen3-32b-fp4",
            "nvidia/qwen3-32b-nvfp4",
        ),
        models=("qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-32b"),
        words=("fp4", "nvfp4"),
        precision=_ALL_NVFP4_KV,
        source=(
            "model cards: weights and activations of the linear operators within transformer"
            " blocks; the head is not. The later Instruct-2507 one of 235B leaves attention in BF16"
            " (sgl-project/sglang#18189)"
        ),
    ),
    Checkpoint(
        names=("moonshotai/kimi-k2.5", "moonshotai/kimi-k2-thinking"),
        models=("kimi-k2.5", "kimi-k2"),
        words=("int4",),
        originals=("kimi-k2.5",),
        precision=Precision(experts=INT4),
        source=(
            "config.json: compressed-tensors, 4-bit weights in groups of 32; attention, shared"
            " experts, the dense layer and head are not (card of ISTA-DASLab/Kimi-K2.5-2Bit-GSQ"
            " lists the same; groups from memory)"
        ),
    ),
    Checkpoint(
        names=("minimaxai/minimax-m2.5", "minimaxai/minimax-m2"),
        models=("minimax-m2.5",),
        words=("fp8",),
        originals=("minimax-m2.5",),
        precision=_ALL_FP8,
        source=(
            "config.json: fp8 e4m3, blocks of 128 x 128, modules_to_not_convert: gate,"
            " e_score_correction_bias, lm_head"
        ),
    ),
    Checkpoint(
        names=("qwen/qwen3.5-397b-a17b-fp8",),
        models=("qwen3.5-397b-a17b",),
        words=("fp8",),
        precision=_ALL_FP8,
        source=(
            "from memory of its config.json: blocks of 128 x 128; small projections of the linear"
            " attention, gates, head and the tower of images are not"
        ),
    ),
    Checkpoint(
        names=("nvidia/qwen3.5-397b-a17b-nvfp4",),
        models=("qwen3.5-397b-a17b",),
        words=("fp4", "nvfp4"),
        precision=Precision(mlp=NVFP4, experts=NVFP4),
        source=(
            "sizes of public NVFP4 builds: 233 GB, so experts alone; whether the shared expert is"
            " among them is not known here, it is 0.2 % of the weights"
        ),
    ),
    Checkpoint(
        names=("zai-org/glm-5-fp8", "zhipuai/glm-5"),
        models=("glm-5",),
        words=("fp8",),
        precision=_ALL_FP8,
        source=(
            "from memory of its config.json: as DeepSeek-V3's, the indexer's projections of scores"
            " in 16 bits"
        ),
    ),
    Checkpoint(
        names=tuple(
            f"nvidia/{name}-fp8"
            for name in (
                "llama-3.1-8b-instruct",
                "llama-3.3-70b-instruct",
                "llama-3.1-405b-instruct",
            )
        ),
        models=_LLAMA,
        words=("fp8",),
        precision=_ALL_FP8_KV,
        source=(
            "hf_quant_config.json: FP8 with a scale a tensor, but the head (Llama 4: and routers);"
            " kv_cache_quant_algo FP8 (memory)"
        ),
    ),
    Checkpoint(
        names=tuple(
            f"nvidia/{name}-fp4"
            for name in (
                "llama-3.1-8b-instruct",
                "llama-3.3-70b-instruct",
                "llama-3.1-405b-instruct",
            )
        ),
        models=_LLAMA,
        words=("fp4", "nvfp4"),
        precision=_ALL_NVFP4_KV,
        source=(
            "hf_quant_config.json: NVFP4, but the head (Llama 4: and routers; its attention too,"
            " vLLM's test of quantised attention loads it); kv_cache_quant_algo FP8 (from memory)"
        ),
    ),
)


def find_checkpoint(model: str, *, number_format: str, name: str = "") -> Checkpoint | None:
    """Checkpoint with the published `name`, else the first of a model in `number_format`, or None.

    Args:
        model: first name of the catalog's entry.
        number_format: its short name in lower case, ``fp8``.
        name: published name.
    """
    named = [checkpoint for checkpoint in CHECKPOINTS if name.lower() in checkpoint.names]
    usual = (
        checkpoint
        for checkpoint in CHECKPOINTS
        if model in checkpoint.models and number_format in checkpoint.words
    )
    return named[0] if named else next(usual, None)


def published_checkpoint(model: str) -> Checkpoint | None:
    """The quantised checkpoint in which a model was first published; None for other models.

    Args:
        model: first name of the catalog's entry.
    """
    return next((found for found in CHECKPOINTS if model in found.originals), None)


def plain_precision(number_format: str) -> Precision | None:
    """Number formats of a model in plain ``bf16``, ``fp16`` or ``fp8``; None for other names.

    All GEMMs but the head have the format; in fp16 the head has it too.
    """
    formats = {
        "bf16": Precision(),
        "fp16": Precision(
            **dict.fromkeys(("attention", "mlp", "experts", "head"), _HALF), kv=NumberFormat.FP16
        ),
        "fp8": _ALL_FP8,
    }
    return formats.get(number_format)


_HALF: Final = OperatorPrecision(weights=NumberFormat.FP16, activations=NumberFormat.FP16)
