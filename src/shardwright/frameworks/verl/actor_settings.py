"""Settings of the training step of verl's actor: names, defaults and sizes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.build_launch import replicas
from shardwright.frameworks.settings.refuse_unpriced_settings import refused
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    prefixed,
)
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import is_on
from shardwright.frameworks.transformers.read import normalize_dtypes
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import TrainerNames
from shardwright.runtime.parse_launch_arguments import Arguments

DOCS: Final = "https://verl.readthedocs.io/en/latest/examples/config.html"
ACTOR_PREFIX: Final = "actor-rollout-ref.actor."
MODEL_PREFIX: Final = "actor-rollout-ref.model."
_RL: Final = (
    "of reinforcement learning the actor's training step alone is priced: not rollout,"
    " log-probabilities, reference, critic or reward"
)
_MOVED: Final = (
    "states move to host memory between phases, which takes time outside of the training step"
)


def sample_tokens(settings: Arguments) -> int:
    """Tokens of a sample: longest prompt and response (512 each by default)."""
    return count(settings, "data.max-prompt-length", 512) + count(
        settings, "data.max-response-length", 512
    )


def actor_microbatch(settings: Arguments, *, dp: int, cp: int) -> tuple[int, str]:
    """(samples of the actor's microbatch on a replica, note if derived from tokens, else empty).

    Raises:
        DataError: no setting gives the number.
    """
    if is_on(settings, f"{ACTOR_PREFIX}use-dynamic-bsz"):
        # Each device has so many tokens of a microbatch, and a group of sequence parallelism as
        # many times more.
        tokens = count(settings, f"{ACTOR_PREFIX}ppo-max-token-len-per-gpu", 16384) * cp
        samples = max(tokens // max(sample_tokens(settings), 1), 1)
        return (
            samples,
            f"a microbatch of up to {tokens:,} tokens is {samples} of the longest samples",
        )
    if f"{ACTOR_PREFIX}ppo-micro-batch-size-per-gpu" in settings:
        return count(settings, f"{ACTOR_PREFIX}ppo-micro-batch-size-per-gpu", 1), ""
    if f"{ACTOR_PREFIX}ppo-micro-batch-size" in settings:
        return max(count(settings, f"{ACTOR_PREFIX}ppo-micro-batch-size", 1) // dp, 1), ""
    raise DataError(
        "the launch does not say how many samples a microbatch of the actor has",
        hint="actor.ppo_micro_batch_size_per_gpu=N",
    )


def device_count_notes(settings: Arguments, devices: int) -> tuple[str, ...]:
    """A note if the launch is for another number of devices than the cluster has."""
    named = count(settings, "trainer.n-gpus-per-node", 8) * count(settings, "trainer.nnodes", 1)
    if not {"trainer.n-gpus-per-node", "trainer.nnodes"} & settings.keys() or named == devices:
        return ()
    return (f"the launch is for {named} devices, the cluster has {devices}",)


def actor_notes(settings: Arguments, devices: int, microbatch_note: str) -> tuple[str, ...]:
    """Notes on the priced phase, the length of samples, microbatches and the number of devices."""
    lengths = (
        f"samples are counted at their longest, {sample_tokens(settings)} tokens of prompt and"
        " response"
    )
    microbatch = (microbatch_note,) if microbatch_note else ()
    return (_RL, lengths, *microbatch, *device_count_notes(settings, devices))


def normalize_formats(settings: dict[str, str], devices: int) -> None:
    """Rewrite in place: weights' dtype, bf16 on unless it is bf16, no LoRA rank if it is 0."""
    normalize_dtypes(settings, devices)
    settings["bf16"] = "false" if settings["weights"] == "bf16" else "true"
    if settings.get("lora-rank", "0") == "0":
        settings.pop("lora-rank", None)


def _normalize_actor(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Rewrite the actor's FSDP settings to canonical names in place, and return notes."""
    strategy = settings.get(f"{ACTOR_PREFIX}strategy", "fsdp").lower()
    if strategy not in ("fsdp", "fsdp2"):
        raise DataError(
            f"actor.strategy {strategy[:40]} is not priced here", hint="fsdp, fsdp2 or megatron"
        )
    settings.setdefault("weights", "fp32")
    normalize_formats(settings, devices)
    size = settings.get("fsdp-size", "-1")
    ulysses = max(count(settings, "ulysses", 1), 1)
    if not size.startswith("-") and count({"fsdp-size": size}, "fsdp-size") < devices:
        shard_size = max(count({"fsdp-size": size}, "fsdp-size"), 1)
        settings["dp-replicate"] = str(devices // shard_size) if shard_size > 1 else "1"
        settings["fsdp"] = "full_shard" if shard_size > 1 else ""
    else:
        settings["fsdp"] = "full_shard"
    dp = replicas(devices, sp=ulysses)
    micro, note = actor_microbatch(settings, dp=dp, cp=ulysses)
    samples_per_prompt = max(count(settings, "actor-rollout-ref.rollout.n", 1), 1)
    settings |= {
        "per-device-train-batch-size": str(micro),
        "train-batch-size": str(
            count(settings, f"{ACTOR_PREFIX}ppo-mini-batch-size", 256) * samples_per_prompt
        ),
        "seq-len": str(sample_tokens(settings)),
        "packing": "true",
    }
    return actor_notes(settings, devices, note)


_OF_RL: Final = by_name(
    {
        "of the other phases, which are not priced": (
            "actor-rollout-ref.rollout.* actor-rollout-ref.ref.* critic.* reward-model.* reward.*"
            " algorithm.* custom-reward-function.* global-profiler.* ray-init.* ray-kwargs.*"
            " transfer-queue.* actor-rollout-ref.hybrid-engine actor-rollout-ref.nccl-timeout"
        ),
        "data": "data.*",
        "how it starts, what is logged and saved": (
            ("trainer.* hydra.* config-path config-name defaults -config-path -target-")
            + " "
            + prefixed(ACTOR_PREFIX, "checkpoint.* profiler.* profile.* load-weight")
        ),
        "how fast is learnt": (
            prefixed(
                ACTOR_PREFIX,
                "optim.* clip-ratio* kl-loss-* use-kl-loss entropy-coeff loss-agg-mode"
                " ppo-epochs grad-clip shuffle policy-loss.* tis-imp-ratio-cap"
                " data-loader-seed loss-scale-factor behav-* freeze-vision-tower",
            )
        ),
        "the model, which MODEL says": (
            prefixed(
                MODEL_PREFIX,
                "path external-lib override-config.* trust-remote-code use-shm"
                " tokenizer-path hf-config-path lora-alpha custom-chat-template lora.*"
                " exclude-modules",
            )
        ),
        "as the planner has it": (
            prefixed(MODEL_PREFIX, "use-remove-padding")
            + " "
            + prefixed(
                ACTOR_PREFIX,
                "use-remove-padding use-torch-compile fsdp-config.use-torch-compile"
                " fsdp-config.wrap-policy.* fsdp-config.strategy"
                " fsdp-config.use-orig-params fsdp-config.seed ppo-max-token-len-per-gpu"
                " fsdp-config.forward-prefetch fsdp-config.entropy-*"
                " fsdp-config.full-determinism fsdp-config.dtype",
            )
        ),
    }
)
_OF_FSDP: Final = MappingProxyType(
    {
        f"{ACTOR_PREFIX}fsdp-config.model-dtype": "weights",
        f"{ACTOR_PREFIX}optim.optimizer": "optim",
        f"{ACTOR_PREFIX}fsdp-config.fsdp-size": "fsdp-size",
        f"{ACTOR_PREFIX}fsdp-config.reshard-after-forward": "fsdp.reshard-after-forward",
        f"{ACTOR_PREFIX}fsdp-config.offload-policy": "fsdp.offload-params",
        f"{ACTOR_PREFIX}ulysses-sequence-parallel-size": "ulysses",
        f"{ACTOR_PREFIX}fsdp-config.ulysses-sequence-parallel-size": "ulysses",
        f"{MODEL_PREFIX}enable-gradient-checkpointing": "gradient-checkpointing",
        f"{MODEL_PREFIX}lora-rank": "lora-rank",
        f"{MODEL_PREFIX}target-modules": "lora-target",
    }
)
REFUSED: Final = MappingProxyType(
    {
        f"{MODEL_PREFIX}enable-activation-offload": refused(
            "moving saved activations to host memory"
        ),
        f"{MODEL_PREFIX}tiled-mlp.enabled": refused("feed-forwards in tiles"),
        f"{MODEL_PREFIX}mtp.enable": refused("prediction modules of the actor"),
        f"{MODEL_PREFIX}mtp.enable-train": refused("prediction modules of the actor"),
        "actor-rollout-ref.actor.entropy-checkpointing": refused(
            "an entropy that is made again in backward"
        ),
    }
)
_UNMODELLED: Final = by_name(
    {
        _MOVED: (
            prefixed(
                ACTOR_PREFIX,
                "fsdp-config.param-offload fsdp-config.optimizer-offload"
                " megatron.param-offload megatron.grad-offload"
                " megatron.optimizer-offload",
            )
        ),
        "a loss in parts, which takes less memory": (
            prefixed(MODEL_PREFIX, "use-fused-kernels fused-kernel-options.impl-backend")
            + " "
            + prefixed(ACTOR_PREFIX, "entropy-from-logits-with-chunking")
        ),
        "Liger's fused norms": f"{MODEL_PREFIX}use-liger",
    }
)
_READ: Final = MappingProxyType(
    {
        f"{ACTOR_PREFIX}ppo-mini-batch-size": "samples of a step, with those of a prompt",
        f"{ACTOR_PREFIX}ppo-micro-batch-size-per-gpu": "samples of a microbatch",
        f"{ACTOR_PREFIX}ppo-micro-batch-size": "samples of a microbatch of all devices",
        f"{ACTOR_PREFIX}use-dynamic-bsz": "samples of a microbatch by their tokens",
        f"{ACTOR_PREFIX}ppo-max-token-len-per-gpu": "tokens of a microbatch",
        f"{ACTOR_PREFIX}strategy": "FSDP or Megatron-Core",
        f"{ACTOR_PREFIX}fsdp-config.fsdp-size": "members of a sharding group",
        "actor-rollout-ref.rollout.n": "samples of a prompt",
        "data.max-prompt-length": "tokens of a sample",
        "data.max-response-length": "tokens of a sample",
        "trainer.n-gpus-per-node": "devices",
        "trainer.nnodes": "devices",
    }
)
ACTOR_ON_FSDP: Final = TrainerNames(
    framework="verl",
    renamed=_OF_FSDP,
    defaults=MappingProxyType(
        {"gradient-checkpointing": "true", "fsdp-size": "-1", "weights": "fp32"}
    ),
    source=DOCS,
    refused=REFUSED,
    understood=_READ,
    own_names=MappingProxyType(
        {"per-device-train-batch-size": f"{ACTOR_PREFIX}ppo-micro-batch-size-per-gpu"}
    ),
    ignored=_OF_RL,
    unmodelled=_UNMODELLED,
    settled=_normalize_actor,
)
