"""Reader of verl's reinforcement learning (the actor's step) and supervised fine-tuning.

Both run on FSDP or Megatron-Core.

Source of names and defaults: verl 0.7, verl/trainer/config (actor, engine, model, optim,
sft_trainer.yaml), workers/fsdp_workers.py and workers/megatron_workers.py
(https://verl.readthedocs.io/en/latest/examples/config.html). ``param_offload`` and
``optimizer_offload`` move states to the host between phases and back before the actor's step, so
the step itself does not change.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.build_launch import replicas
from shardwright.frameworks.launch.framework_detection import (
    FileKind,
    Signature,
)
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch import FileSettings, Launch, LaunchReader
from shardwright.frameworks.megatron.megatron_core_fields import attention_backend
from shardwright.frameworks.megatron.read import USUAL_RUNTIME, Dialect, read_arguments
from shardwright.frameworks.settings.name_lists import by_name, name_set, prefixed
from shardwright.frameworks.settings.unpriced_settings import OFF, OPTIMIZER, refuse, refused
from shardwright.frameworks.settings.value_conversion import count
from shardwright.frameworks.transformers.read import normalize_dtypes
from shardwright.frameworks.transformers.trainer_reader import (
    TrainerNames,
    judged_settings,
    read_trainer,
    settings_if_supported,
)
from shardwright.frameworks.transformers.trainer_strategy import FSDP, is_on
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import Arguments

DOCS: Final = "https://verl.readthedocs.io/en/latest/examples/config.html"
_A: Final = "actor-rollout-ref.actor."
_M: Final = "actor-rollout-ref.model."
_SFT: Final = (
    "fsdp_sft_trainer",
    "sft_trainer",
    "fsdp-sft-trainer",
    "sft-trainer",
    "sft_trainer_ray",
)
_RL: Final = (
    "of reinforcement learning the actor's training step alone is priced: not rollout,"
    " log-probabilities, reference, critic or reward"
)
_MOVED: Final = (
    "states move to host memory between phases, which takes time outside of the training step"
)


def _sample_tokens(settings: Arguments) -> int:
    """Tokens of a sample: longest prompt and response (512 each by default)."""
    return count(settings, "data.max-prompt-length", 512) + count(
        settings, "data.max-response-length", 512
    )


def _microbatch(settings: Arguments, *, dp: int, cp: int) -> tuple[int, str]:
    """Samples of an actor's microbatch on one replica, and a note where they are derived.

    Raises:
        DataError: no setting gives the number.
    """
    if is_on(settings, f"{_A}use-dynamic-bsz"):
        # Each device has so many tokens of a microbatch, and a group of sequence parallelism as
        # many times more.
        tokens = count(settings, f"{_A}ppo-max-token-len-per-gpu", 16384) * cp
        samples = max(tokens // max(_sample_tokens(settings), 1), 1)
        return (
            samples,
            f"a microbatch of up to {tokens:,} tokens is {samples} of the longest samples",
        )
    if f"{_A}ppo-micro-batch-size-per-gpu" in settings:
        return count(settings, f"{_A}ppo-micro-batch-size-per-gpu", 1), ""
    if f"{_A}ppo-micro-batch-size" in settings:
        return max(count(settings, f"{_A}ppo-micro-batch-size", 1) // dp, 1), ""
    raise DataError(
        "the launch does not say how many samples a microbatch of the actor has",
        hint="actor.ppo_micro_batch_size_per_gpu=N",
    )


def _device_count_notes(settings: Arguments, devices: int) -> tuple[str, ...]:
    """A note if the launch is for another number of devices than the cluster has."""
    named = count(settings, "trainer.n-gpus-per-node", 8) * count(settings, "trainer.nnodes", 1)
    if not {"trainer.n-gpus-per-node", "trainer.nnodes"} & settings.keys() or named == devices:
        return ()
    return (f"the launch is for {named} devices, the cluster has {devices}",)


def _notes(settings: Arguments, devices: int, microbatch_note: str) -> tuple[str, ...]:
    """Notes on the priced phase, the length of samples, microbatches and the number of devices."""
    lengths = (
        f"samples are counted at their longest, {_sample_tokens(settings)} tokens of prompt and"
        " response"
    )
    microbatch = (microbatch_note,) if microbatch_note else ()
    return (_RL, lengths, *microbatch, *_device_count_notes(settings, devices))


def _normalize_formats(settings: dict[str, str], devices: int) -> None:
    """Rewrite number formats and a LoRA rank of 0 to canonical settings in place."""
    normalize_dtypes(settings, devices)
    settings["bf16"] = "false" if settings["weights"] == "bf16" else "true"
    if settings.get("lora-rank", "0") == "0":
        settings.pop("lora-rank", None)


def _normalize_actor(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Rewrite the actor's FSDP settings to canonical names in place, and return notes."""
    strategy = settings.get(f"{_A}strategy", "fsdp").lower()
    if strategy not in ("fsdp", "fsdp2"):
        raise DataError(
            f"actor.strategy {strategy[:40]} is not priced here", hint="fsdp, fsdp2 or megatron"
        )
    settings.setdefault("weights", "fp32")
    _normalize_formats(settings, devices)
    size = settings.get("fsdp-size", "-1")
    ulysses = max(count(settings, "ulysses", 1), 1)
    if not size.startswith("-") and count({"fsdp-size": size}, "fsdp-size") < devices:
        shard_size = max(count({"fsdp-size": size}, "fsdp-size"), 1)
        settings["dp-replicate"] = str(devices // shard_size) if shard_size > 1 else "1"
        settings["fsdp"] = "full_shard" if shard_size > 1 else ""
    else:
        settings["fsdp"] = "full_shard"
    dp = replicas(devices, sp=ulysses)
    micro, note = _microbatch(settings, dp=dp, cp=ulysses)
    samples_per_prompt = max(count(settings, "actor-rollout-ref.rollout.n", 1), 1)
    settings |= {
        "per-device-train-batch-size": str(micro),
        "train-batch-size": str(
            count(settings, f"{_A}ppo-mini-batch-size", 256) * samples_per_prompt
        ),
        "seq-len": str(_sample_tokens(settings)),
        "packing": "true",
    }
    return _notes(settings, devices, note)


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
            + prefixed(_A, "checkpoint.* profiler.* profile.* load-weight")
        ),
        "how fast is learnt": (
            prefixed(
                _A,
                "optim.* clip-ratio* kl-loss-* use-kl-loss entropy-coeff loss-agg-mode"
                " ppo-epochs grad-clip shuffle policy-loss.* tis-imp-ratio-cap"
                " data-loader-seed loss-scale-factor behav-* freeze-vision-tower",
            )
        ),
        "the model, which MODEL says": (
            prefixed(
                _M,
                "path external-lib override-config.* trust-remote-code use-shm"
                " tokenizer-path hf-config-path lora-alpha custom-chat-template lora.*"
                " exclude-modules",
            )
        ),
        "as the planner has it": (
            prefixed(_M, "use-remove-padding")
            + " "
            + prefixed(
                _A,
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
        f"{_A}fsdp-config.model-dtype": "weights",
        f"{_A}optim.optimizer": "optim",
        f"{_A}fsdp-config.fsdp-size": "fsdp-size",
        f"{_A}fsdp-config.reshard-after-forward": "fsdp.reshard-after-forward",
        f"{_A}fsdp-config.offload-policy": "fsdp.offload-params",
        f"{_A}ulysses-sequence-parallel-size": "ulysses",
        f"{_A}fsdp-config.ulysses-sequence-parallel-size": "ulysses",
        f"{_M}enable-gradient-checkpointing": "gradient-checkpointing",
        f"{_M}lora-rank": "lora-rank",
        f"{_M}target-modules": "lora-target",
    }
)
_REFUSED: Final = MappingProxyType(
    {
        f"{_M}enable-activation-offload": refused("moving saved activations to host memory"),
        f"{_M}tiled-mlp.enabled": refused("feed-forwards in tiles"),
        f"{_M}mtp.enable": refused("prediction modules of the actor"),
        f"{_M}mtp.enable-train": refused("prediction modules of the actor"),
        "actor-rollout-ref.actor.entropy-checkpointing": refused(
            "an entropy that is made again in backward"
        ),
    }
)
_UNMODELLED: Final = by_name(
    {
        _MOVED: (
            prefixed(
                _A,
                "fsdp-config.param-offload fsdp-config.optimizer-offload"
                " megatron.param-offload megatron.grad-offload"
                " megatron.optimizer-offload",
            )
        ),
        "a loss in parts, which takes less memory": (
            prefixed(_M, "use-fused-kernels fused-kernel-options.impl-backend")
            + " "
            + prefixed(_A, "entropy-from-logits-with-chunking")
        ),
        "Liger's fused norms": f"{_M}use-liger",
    }
)
_READ: Final = MappingProxyType(
    {
        f"{_A}ppo-mini-batch-size": "samples of a step, with those of a prompt",
        f"{_A}ppo-micro-batch-size-per-gpu": "samples of a microbatch",
        f"{_A}ppo-micro-batch-size": "samples of a microbatch of all devices",
        f"{_A}use-dynamic-bsz": "samples of a microbatch by their tokens",
        f"{_A}ppo-max-token-len-per-gpu": "tokens of a microbatch",
        f"{_A}strategy": "FSDP or Megatron-Core",
        f"{_A}fsdp-config.fsdp-size": "members of a sharding group",
        "actor-rollout-ref.rollout.n": "samples of a prompt",
        "data.max-prompt-length": "tokens of a sample",
        "data.max-response-length": "tokens of a sample",
        "trainer.n-gpus-per-node": "devices",
        "trainer.nnodes": "devices",
    }
)
_FSDP: Final = TrainerNames(
    framework="verl",
    renamed=_OF_FSDP,
    defaults=MappingProxyType(
        {"gradient-checkpointing": "true", "fsdp-size": "-1", "weights": "fp32"}
    ),
    source=DOCS,
    refused=_REFUSED,
    understood=_READ,
    own_names=MappingProxyType(
        {"per-device-train-batch-size": f"{_A}ppo-micro-batch-size-per-gpu"}
    ),
    ignored=_OF_RL,
    unmodelled=_UNMODELLED,
    settled=_normalize_actor,
)


def _normalize_fine_tuning(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Rewrite the settings of supervised fine-tuning in place, and return notes."""
    _normalize_formats(settings, devices)
    settings["fsdp"] = "full_shard"
    return _device_count_notes(settings, devices)


_TUNING: Final = TrainerNames(
    framework="verl",
    renamed=MappingProxyType(
        {
            "data.train-batch-size": "train-batch-size",
            "data.micro-batch-size-per-gpu": "per-device-train-batch-size",
            "data.micro-batch-size": "per-device-train-batch-size",
            "data.max-length": "seq-len",
            "ulysses-sequence-parallel-size": "ulysses",
            "model.enable-gradient-checkpointing": "gradient-checkpointing",
            "model.fsdp-config.model-dtype": "weights",
            "optim.optimizer": "optim",
            "model.fsdp-config.cpu-offload": "fsdp.offload-params",
            "model.fsdp-config.offload-params": "fsdp.offload-params",
            "model.lora-rank": "lora-rank",
            "model.target-modules": "lora-target",
        }
    ),
    defaults=MappingProxyType(
        {
            "train-batch-size": "256",
            "per-device-train-batch-size": "4",
            "seq-len": "1024",
            "gradient-checkpointing": "true",
            "weights": "fp32",
        }
    ),
    source=DOCS,
    refused=MappingProxyType(
        {"engine.*": refused("another engine of its fine-tuning", "no value")}
    ),
    ignored=by_name(
        {
            "data": "data.* use-remove-padding",
            "how fast is learnt": "optim.*",
            "how it starts, what is logged and saved": (
                "trainer.* hydra.* config-path config-name checkpoint.*"
            ),
            "the model, which MODEL says": (
                "model.partial-pretrain model.path model.trust-remote-code model.external-lib"
                " model.lora-alpha model.use-shm model.override-config.*"
                " model.fsdp-config.wrap-policy.* model.strategy"
            ),
        }
    ),
    unmodelled=by_name({"Liger's fused norms": "model.use-liger"}),
    settled=_normalize_fine_tuning,
)
_T: Final = f"{_A}megatron.override-transformer-config."
_O: Final = f"{_A}optim.override-optimizer-config."
_CORE_RENAMED: Final = MappingProxyType(
    {
        "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
        "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
        "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
        "moe-enable-deepep": "moe-enable-deepep",
    }
)
_CORE_REST: Final = name_set(
    "apply-rope-fusion gradient-accumulation-fusion use-mbridge"
    " vanilla-mbridge load-weight use-dist-checkpointing"
    " dist-checkpointing-path dist-checkpointing-prefix seed"
    " use-remove-padding dtype bias-activation-fusion bias-dropout-fusion"
    " masked-softmax-fusion deallocate-pipeline-outputs persist-layer-norm"
    " forward-only moe-aux-loss-coeff moe-z-loss-coeff"
    " moe-router-bias-update-rate overlap-cpu-optimizer-d2h-h2d"
    " use-precision-aware-optimizer moe-router-load-balancing-type"
)


def _megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Rename a setting of verl's Megatron-Core back end to Megatron-LM's arguments.

    None for settings of other phases.
    """
    section = next((prefix for prefix in (_T, _O, f"{_A}megatron.") if name.startswith(prefix)), "")
    if name in ("micro-batch-size", "global-batch-size", "seq-length"):
        return ((name, value),)
    if not section or "override-" in name.removeprefix(section):
        return None
    short = name.removeprefix(section)
    if short == "attention-backend":
        return attention_backend(value)
    if short in _CORE_REST or short in ("param-offload", "grad-offload", "optimizer-offload"):
        return ()
    return (
        (
            _CORE_RENAMED.get(short, short),
            value.strip("[]").replace("'", "").replace('"', "").replace(",", " "),
        ),
    )


_CORE: Final = Dialect(
    framework="verl",
    arguments_of=_megatron_arguments,
    defaults=MappingProxyType(
        {
            "attention-dropout": "0",
            "hidden-dropout": "0",
            "bf16": "true",
            "sequence-parallel": "true",
            "attention-backend": "flash",
            "use-distributed-optimizer": "true",
            "moe-token-dispatcher-type": "alltoall",
        }
    ),
)


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
    programs=name_set(
        "verl.trainer.main-ppo verl.trainer.main_ppo recipe.dapo.main_dapo"
        " verl.trainer.fsdp_sft_trainer verl.trainer.sft_trainer verl/trainer/main_ppo.py"
        " verl/trainer/fsdp_sft_trainer.py"
    ),
    own=frozenset(
        {"actor-rollout-ref.*", "model.partial-pretrain", "critic.*", "algorithm.adv-estimator"}
    ),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert verl's settings to a launch of the actor's step, or of fine-tuning."""
    settings = file_settings.arguments
    if file_settings.program.rpartition(".")[2] in _SFT or "model.partial-pretrain" in settings:
        return read_trainer(_TUNING, file_settings, model=model, devices=devices, runtime=runtime)
    core = any(
        name.startswith(f"{_A}megatron.") for name in settings
    ) or "megatron" in settings.get("config-name", "") + settings.get(f"{_A}strategy", "")
    if not core:
        return read_trainer(_FSDP, file_settings, model=model, devices=devices, runtime=runtime)
    refuse(settings, {**_REFUSED, f"{_A}optim.optimizer": OPTIMIZER})
    return _on_megatron(
        file_settings,
        model=model,
        devices=devices,
        runtime=USUAL_RUNTIME if runtime in ("", FSDP) else runtime,
    )


def _on_megatron(
    file_settings: FileSettings, *, model: Model, devices: int, runtime: str
) -> Launch:
    """Convert verl's settings to a launch of the actor's step on Megatron-Core."""
    settings = file_settings.arguments
    degrees = {
        axis: max(count(settings, f"{_A}megatron.{name}-parallel-size", 1), 1)
        for axis, name in _DEGREES.items()
    }
    dp = replicas(devices, **degrees)
    micro, note = _microbatch(settings, dp=dp, cp=degrees["cp"])
    samples_per_prompt = max(count(settings, "actor-rollout-ref.rollout.n", 1), 1)
    sizes = {
        "micro-batch-size": str(micro),
        "global-batch-size": str(
            count(settings, f"{_A}ppo-mini-batch-size", 256) * samples_per_prompt
        ),
        "seq-length": str(_sample_tokens(settings)),
    }
    launch = read_arguments(
        _CORE,
        replace(file_settings, arguments={**settings, **sizes}),
        model=model,
        devices=devices,
        runtime=runtime,
    )
    rank = settings.get(f"{_M}lora.rank", settings.get(f"{_M}lora-rank", "0"))
    targets = settings.get(f"{_M}lora.target-modules", settings.get(f"{_M}target-modules", "all"))
    adapters = adapters_of("" if rank.lower() in OFF else rank, targets, model)
    notes = (*_notes(settings, devices, note), *adapters.notes)
    verdicts_on = judged_settings(_FSDP, file_settings)
    launch_settings = tuple(
        verdicts_on.get(setting.name, setting)
        for setting in launch.settings
        if setting.name not in sizes
    )
    return replace(
        launch, settings=launch_settings, train=adapters.train, notes=(*launch.notes, *notes)
    )


_DEGREES: Final = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context"}
VERL: Final = LaunchReader(
    name="verl",
    runtime=FSDP,
    target="megatron",
    signature=SIGNATURE,
    read=_read,
    settings_of=partial(settings_if_supported, _FSDP),
    own_name=lambda name: name.replace("-", "_"),
)
