"""Megatron-DeepSpeed's command lines and the JSON of DeepSpeed beside them.

Source of the names: Megatron-DeepSpeed, megatron/arguments.py.
"""

from __future__ import annotations

from typing import Final

from shardwright.frameworks.launch.framework_claims import (
    NO_CLAIM,
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
    joined,
)
from shardwright.frameworks.megatron.read import (
    MEGATRON,
    MEGATRON_SIGNATURE,
    Dialect,
    dialect_reader,
)
from shardwright.frameworks.megatron.releases import meant
from shardwright.frameworks.settings.name_lists import name_set
from shardwright.runtime.launch_arguments import Arguments

_OF_DEEPSPEED: Final = name_set(
    "deepspeed deepspeed-config deepspeed-activation-checkpointing"
    " train-batch-size train-micro-batch-size-per-gpu no-pipeline-parallel"
    " zero-allow-untested-optimizer train-batch-size lr-decay-tokens"
    " lr-warmup-tokens gradient-clipping steps-per-print"
    " wall-clock-breakdown pp-partition-method gradient-accumulation-steps"
)
"""Settings of DeepSpeed's that repeat arguments, or change nothing."""


_MEGATRON_DEEPSPEED: Final = Signature(
    kinds=frozenset({FileKind.COMMAND}),
    own=frozenset(
        {
            "zero-stage",
            "pp-partition-method",
            "deepspeed-activation-checkpointing",
            "ds-sequence-parallel-size",
        }
    )
    | {"deepspeed", "deepspeed-config", "no-pipeline-parallel"},
    files=(
        NamedFile(
            setting="deepspeed-config", holds="the stage of ZeRO", instead=frozenset({"zero-stage"})
        ),
    ),
)


def megatron_deepspeed(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """An argument of Megatron-DeepSpeed, or a setting of its DeepSpeed configuration; both say the
    stage of ZeRO.
    """
    if name in ("zero-stage", "zero-optimization.stage"):
        return (("zero-stage", value),)
    if name == "ds-sequence-parallel-size":
        return (("context-parallel-size", value), ("cp-comm-type", "a2a")) if value != "1" else ()
    if name == "num-key-value-heads":
        return (("group-query-attention", "true"), ("num-query-groups", value))
    if name in ("bf16.enabled", "fp16.enabled"):
        return ((name.partition(".")[0], value), (name, value))
    if name == "pp-partition-method" and "embedding" in value:
        return tuple(
            (f"account-for-{end}-in-pipeline-split", "true") for end in ("embedding", "loss")
        )
    if name in _OF_DEEPSPEED or "." in name:
        return ()
    return meant(name, value)


def with_bf16_optimizer(arguments: Arguments) -> Arguments:
    """Products in bf16 without ZeRO have an optimizer whose states are shared out as with stage 1
    (runtime/bf16_optimizer.py).
    """
    if arguments.get("bf16.enabled") == "true" and arguments.get("zero-stage", "0") == "0":
        return {**arguments, "zero-stage": "1"}
    return arguments


def _of_both(signature: Signature, document: Document) -> Claim:
    """DeepSpeed's arguments are those of any program that DeepSpeed starts; beside Megatron-LM's
    they are Megatron-DeepSpeed's.
    """
    own, of_megatron = claim_of(signature, document), claim_of(MEGATRON_SIGNATURE, document)
    return joined((own, of_megatron)) if own.evidence and of_megatron.evidence else NO_CLAIM


MEGATRON_DEEPSPEED: Final = dialect_reader(
    Dialect(
        framework="megatron-deepspeed",
        arguments_of=megatron_deepspeed,
        completed=with_bf16_optimizer,
        refuses=False,
    ),
    runtime="deepspeed-2022",
    settings=MEGATRON.settings,
    signature=_MEGATRON_DEEPSPEED,
    evidence=_of_both,
    includes=frozenset({"megatron", "deepspeed"}),
)
