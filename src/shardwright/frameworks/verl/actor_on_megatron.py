"""Reader of the training step of verl's actor on Megatron-Core."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.build_launch import replicas
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch_and_reader_types import FileSettings, Launch
from shardwright.frameworks.megatron.argument_names_of_core_fields import attention_backend
from shardwright.frameworks.megatron.read import Dialect, read_arguments
from shardwright.frameworks.settings.refuse_unpriced_settings import OFF
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import judged_settings
from shardwright.frameworks.verl.actor_settings import (
    ACTOR_ON_FSDP,
    ACTOR_PREFIX,
    MODEL_PREFIX,
    actor_microbatch,
    actor_notes,
    sample_tokens,
)
from shardwright.model.ir.model_graph import Model

_T: Final = f"{ACTOR_PREFIX}megatron.override-transformer-config."
_O: Final = f"{ACTOR_PREFIX}optim.override-optimizer-config."
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
    """Megatron-LM's (argument, value) of a verl setting; () if ignored, None for other phases.

    None for settings of other phases.
    """
    section = next(
        (prefix for prefix in (_T, _O, f"{ACTOR_PREFIX}megatron.") if name.startswith(prefix)), ""
    )
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


def read_actor_on_megatron(
    file_settings: FileSettings, *, model: Model, devices: int, runtime: str
) -> Launch:
    """Convert verl's settings to a launch of the actor's step on Megatron-Core."""
    settings = file_settings.arguments
    degrees = {
        axis: max(count(settings, f"{ACTOR_PREFIX}megatron.{name}-parallel-size", 1), 1)
        for axis, name in _DEGREES.items()
    }
    dp = replicas(devices, **degrees)
    micro, note = actor_microbatch(settings, dp=dp, cp=degrees["cp"])
    samples_per_prompt = max(count(settings, "actor-rollout-ref.rollout.n", 1), 1)
    sizes = {
        "micro-batch-size": str(micro),
        "global-batch-size": str(
            count(settings, f"{ACTOR_PREFIX}ppo-mini-batch-size", 256) * samples_per_prompt
        ),
        "seq-length": str(sample_tokens(settings)),
    }
    launch = read_arguments(
        _CORE,
        replace(file_settings, arguments={**settings, **sizes}),
        model=model,
        devices=devices,
        runtime=runtime,
    )
    rank = settings.get(f"{MODEL_PREFIX}lora.rank", settings.get(f"{MODEL_PREFIX}lora-rank", "0"))
    targets = settings.get(
        f"{MODEL_PREFIX}lora.target-modules", settings.get(f"{MODEL_PREFIX}target-modules", "all")
    )
    adapters = adapters_of("" if rank.lower() in OFF else rank, targets, model)
    notes = (*actor_notes(settings, devices, note), *adapters.notes)
    verdicts_on = judged_settings(ACTOR_ON_FSDP, file_settings)
    launch_settings = tuple(
        verdicts_on.get(setting.name, setting)
        for setting in launch.settings
        if setting.name not in sizes
    )
    return replace(
        launch, settings=launch_settings, train=adapters.train, notes=(*launch.notes, *notes)
    )


_DEGREES: Final = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context"}
