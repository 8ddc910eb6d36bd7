"""Reader of Megatron-DeepSpeed's command lines and of DeepSpeed's JSON beside them.

Source of the names: Megatron-DeepSpeed, megatron/arguments.py.
"""

from __future__ import annotations

from typing import Final

from shardwright.frameworks.launch.framework_detection import (
    NO_CLAIM,
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
    joined_claims,
)
from shardwright.frameworks.megatron.arguments_by_release import current_arguments
from shardwright.frameworks.megatron.read import (
    MEGATRON,
    MEGATRON_SIGNATURE,
    Dialect,
    dialect_reader,
)
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.runtime.parse_launch_arguments import Arguments

_OF_DEEPSPEED: Final = name_set(
    "deepspeed deepspeed-config deepspeed-activation-checkpointing"
    " train-batch-size train-micro-batch-size-per-gpu no-pipeline-parallel"
    " zero-allow-untested-optimizer train-batch-size lr-decay-tokens"
    " lr-warmup-tokens gradient-clipping steps-per-print"
    " wall-clock-breakdown pp-partition-method gradient-accumulation-steps"
)
"""DeepSpeed's settings that repeat arguments, or have no effect."""


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


def megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Megatron-LM's (argument, value) of an argument or DeepSpeed setting; () if ignored."""
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
    return current_arguments(name, value)


def with_bf16_optimizer(arguments: Arguments) -> Arguments:
    """Set ZeRO stage 1 for bf16 without ZeRO, because DeepSpeed's bf16 optimizer shards states.

    Source: DeepSpeed, runtime/bf16_optimizer.py.
    """
    if arguments.get("bf16.enabled") == "true" and arguments.get("zero-stage", "0") == "0":
        return {**arguments, "zero-stage": "1"}
    return arguments


def _claim_with_megatron(signature: Signature, document: Document) -> Claim:
    """Claim of a command with arguments of both DeepSpeed and Megatron-LM; else no claim.

    DeepSpeed's arguments alone are those of any program that DeepSpeed starts.
    """
    deepspeed, of_megatron = claim_of(signature, document), claim_of(MEGATRON_SIGNATURE, document)
    return (
        joined_claims((deepspeed, of_megatron))
        if deepspeed.evidence and of_megatron.evidence
        else NO_CLAIM
    )


MEGATRON_DEEPSPEED: Final = dialect_reader(
    Dialect(
        framework="megatron-deepspeed",
        arguments_of=megatron_arguments,
        completed=with_bf16_optimizer,
        refuses=False,
    ),
    runtime="deepspeed-2022",
    settings=MEGATRON.settings,
    signature=_MEGATRON_DEEPSPEED,
    evidence=_claim_with_megatron,
    includes=frozenset({"megatron", "deepspeed"}),
)
