"""Reader of verl's reinforcement learning (the actor's step) and supervised fine-tuning.

Both run on FSDP or Megatron-Core.

Source of names and defaults: verl 0.7, verl/trainer/config (actor, engine, model, optim,
sft_trainer.yaml), workers/fsdp_workers.py and workers/megatron_workers.py
(https://verl.readthedocs.io/en/latest/examples/config.html). ``param_offload`` and
``optimizer_offload`` move states to the host between phases and back before the actor's step, so
the step itself does not change.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shardwright.frameworks.launch.framework_detection import FileKind, Signature
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.megatron.read import USUAL_RUNTIME
from shardwright.frameworks.settings.refuse_unpriced_settings import OPTIMIZER, refuse
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import FSDP
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import (
    read_trainer,
    settings_if_supported,
)
from shardwright.frameworks.verl.actor_on_megatron import read_actor_on_megatron
from shardwright.frameworks.verl.actor_settings import ACTOR_ON_FSDP, ACTOR_PREFIX, REFUSED
from shardwright.frameworks.verl.fine_tuning_setting_names_and_defaults import FINE_TUNING
from shardwright.model.ir.model_graph import Model

_SFT: Final = (
    "fsdp_sft_trainer",
    "sft_trainer",
    "fsdp-sft-trainer",
    "sft-trainer",
    "sft_trainer_ray",
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
        return read_trainer(
            FINE_TUNING, file_settings, model=model, devices=devices, runtime=runtime
        )
    core = any(
        name.startswith(f"{ACTOR_PREFIX}megatron.") for name in settings
    ) or "megatron" in settings.get("config-name", "") + settings.get(f"{ACTOR_PREFIX}strategy", "")
    if not core:
        return read_trainer(
            ACTOR_ON_FSDP, file_settings, model=model, devices=devices, runtime=runtime
        )
    refuse(settings, {**REFUSED, f"{ACTOR_PREFIX}optim.optimizer": OPTIMIZER})
    return read_actor_on_megatron(
        file_settings,
        model=model,
        devices=devices,
        runtime=USUAL_RUNTIME if runtime in ("", FSDP) else runtime,
    )


VERL: Final = LaunchReader(
    name="verl",
    runtime=FSDP,
    target="megatron",
    signature=SIGNATURE,
    read=_read,
    settings_of=partial(settings_if_supported, ACTOR_ON_FSDP),
    own_name=lambda name: name.replace("-", "_"),
)
