"""Frameworks that run Megatron-Core, or Megatron-LM's own code, and say it in other words.

Source of the names: NeMo 1 (v1.23), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml; NeMo 2 and Megatron-Bridge 0.6.2,
megatron/bridge/training/config.py with megatron/core/transformer/transformer_config.py; Megatron-DeepSpeed, megatron/arguments.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.launch_files.megatron import MegatronReader

_SHARED: Final = MappingProxyType(
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
    }
)
"""Words of several of them -> Megatron-LM's; empty = what changes nothing."""
_NEMO_SECTIONS: Final = ("model.", "model.optim.", "trainer.", "trainer.strategy.", "strategy.", "data.", "optim.", "megatron-cfg.")
_BRIDGE_SECTIONS: Final = (
    *("model.", "train.", "ddp.", "optimizer.", "dataset.", "comm-overlap.", "checkpoint.", "scheduler.", "logger.", "rng.", "tokenizer."),
    *("dist.", "mixed-precision.", "config.model.", "config.train.", "config.ddp."),
)


def _stripped(name: str, sections: tuple[str, ...]) -> str:
    section = max((one for one in sections if name.startswith(one)), key=len, default="")
    return name.removeprefix(section)


def nemo(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """A setting of NeMo's YAML, or of its recipes."""
    short = _stripped(name, _NEMO_SECTIONS)
    if not name.startswith(_NEMO_SECTIONS):
        return ()
    if short == "precision":
        return (("fp16" if "16" in value and "bf" not in value else "bf16", "true"),)
    if short in ("fp8", "fp8-e4m3", "fp8-hybrid"):
        return (("fp8-format", "hybrid" if value.lower() not in ("false", "null", "none") else "false"),)
    if short == "name" and name.endswith("optim.name"):
        return (("use-distributed-optimizer", str("distributed" in value or "mcore" in value).lower()),)
    if short in ("overlap-grad-sync", "overlap-param-sync"):
        return (({"overlap-grad-sync": "overlap-grad-reduce", "overlap-param-sync": "overlap-param-gather"}[short], value),)
    if short == "grad-reduce-in-fp32":
        return ()
    return ((_SHARED.get(short, short), value),) if _SHARED.get(short, short) else ()


def bridge(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """A setting of a Megatron-Bridge override."""
    short = _stripped(name, _BRIDGE_SECTIONS)
    if short in ("bf16", "fp16", "mixed-precision"):
        return tuple((word, "true") for word in ("bf16", "fp16") if word in f"{short} {value}" and value.lower() != "false")
    if short == "fp8":
        return (("fp8-format", value),)
    if short == "grad-reduce-in-fp32":
        return (("grad-reduce-in-bf16", "false" if value.lower() == "true" else "true"),)
    if short == "check-for-nan-in-grad":
        return (("no-check-for-nan-in-loss-and-grad", "false" if value.lower() == "true" else "true"),)
    if short == "average-in-collective":
        return (("ddp-average-in-collective", value),)
    return ((_SHARED.get(short, short), value),) if _SHARED.get(short, short) else ()


def megatron_deepspeed(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """An argument of Megatron-DeepSpeed, or a setting of its DeepSpeed configuration; both say the stage of ZeRO."""
    if name in ("zero-stage", "zero-optimization.stage"):
        return (("zero-stage", value),)
    if name in ("bf16.enabled", "fp16.enabled"):
        return ((name.partition(".")[0], value),)
    if name == "pp-partition-method" and "embedding" in value:
        return tuple((f"account-for-{end}-in-pipeline-split", "true") for end in ("embedding", "loss"))
    if name in _OF_DEEPSPEED or "." in name:
        return ()
    return ((name, value),)


_OF_DEEPSPEED: Final = frozenset(
    {
        *("deepspeed", "deepspeed-config", "deepspeed-activation-checkpointing", "train-batch-size", "train-micro-batch-size-per-gpu"),
        *("gradient-clipping", "steps-per-print", "wall-clock-breakdown", "pp-partition-method", "gradient-accumulation-steps"),
    }
)
"""Settings of DeepSpeed's that repeat arguments, or change nothing."""


NEMO: Final = MegatronReader(
    name="nemo",
    runtime="nemo-24.11",
    marks=frozenset({"model.tensor-model-parallel-size", "trainer.num-nodes", "exp-manager.name", "model.micro-batch-size"}),
    dialect=nemo,
    defaults=MappingProxyType({"attention-dropout": "0", "hidden-dropout": "0", "moe-token-dispatcher-type": "alltoall"}),
)
BRIDGE: Final = MegatronReader(
    name="megatron-bridge",
    runtime="megatron-bridge",
    marks=frozenset({"model.tensor-model-parallel-size", "train.global-batch-size", "train.micro-batch-size", "ddp.overlap-grad-reduce"}),
    dialect=bridge,
    defaults=MappingProxyType(
        {
            "attention-dropout": "0",
            "hidden-dropout": "0",
            "bf16": "true",
            "use-distributed-optimizer": "true",
            "overlap-grad-reduce": "true",
        }
    ),
)
MEGATRON_DEEPSPEED: Final = MegatronReader(
    name="megatron-deepspeed",
    runtime="deepspeed-2022",
    marks=frozenset(
        {"deepspeed-config", "tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "num-layers", "deepspeed"}
    ),
    dialect=megatron_deepspeed,
)
