"""Reader of Primus's YAML for AMD devices.

The YAML names a back end (Megatron-LM or torchtitan) and the model's file, and overrides the back
end's settings.

Source of names and defaults: Primus main of 2025-09, primus/configs/modules/megatron
(trainer_base.yaml, pre_trainer.yaml) and primus/configs/modules/torchtitan/pre_trainer.yaml
(https://github.com/AMD-AGI/Primus).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_detection import FileKind, Signature
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
    default_notes,
)
from shardwright.frameworks.megatron.read import USUAL_RUNTIME, Dialect, read_arguments
from shardwright.frameworks.settings.refuse_unpriced_settings import (
    OPTIMIZER,
    refusals,
    refuse,
    refused,
)
from shardwright.frameworks.settings.setting_verdicts import (
    LaunchSetting,
    Verdict,
    setting_verdicts,
)
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    entry_of,
)
from shardwright.frameworks.torchtitan.read import TORCHTITAN, canonical_name
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments

DOCS: Final = "https://github.com/AMD-AGI/Primus/tree/main/primus/configs/modules"
_SECTIONS: Final = ("modules.pre-trainer.", "modules.sft-trainer.", "modules.post-trainer.")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,60}):([^${}]{0,200})\}")
_IGNORED: Final = by_name(
    {
        "how it starts": "work-group user-name exp-name workspace platform.*",
        "what is logged": (
            "stderr-sink-level file-sink-level sink-level log-avg-* disable-wandb"
            " disable-tensorboard disable-mlflow"
        ),
        "checkpoints": "auto-continue-train disable-last-saving",
        "data": "mock-data",
        "the model, which MODEL says": (
            "max-position-embeddings init-method-std norm-epsilon tokenizer-* moe-router-*"
        ),
        "kernels of AMD's own, as the planner has them": (
            "moe-use-legacy-grouped-gemm moe-use-fused-router-with-aux-score"
            " fused-padded-mla-attention"
        ),
    }
)
_UNMODELLED: Final = by_name(
    {
        "kernels of Primus Turbo": "enable-primus-turbo use-turbo-* primus-turbo.*",
        "its own choice of layers that are recomputed": "recompute-layer-ids",
    }
)
_REFUSED: Final = MappingProxyType(
    {
        **refusals(
            {
                "Primus Turbo's products in 8 bits": (
                    "enable-turbo-attention-float8 enable-turbo-gemm-float8"
                ),
                "Primus's pipeline with split backwards": "patch-zero-bubble enable-zero-bubble",
                "recompute of layers that are named": "recompute-layer-ids",
                "Primus Turbo's DeepEP": "use-turbo-deepep",
                "Primus Turbo's experts without synchronisation": "turbo-sync-free-moe-stage",
            }
        ),
        "use-custom-fsdp": refused("Megatron's own FSDP", "false"),
        "optimizer": OPTIMIZER,
    }
)
_MEGATRON: Final = Dialect(
    framework="primus",
    arguments_of=lambda name, value: _megatron_arguments(name, value),
    defaults=MappingProxyType(
        {
            "attention-dropout": "0",
            "hidden-dropout": "0",
            "bf16": "true",
            "use-distributed-optimizer": "true",
            "moe-token-dispatcher-type": "alltoall",
            "micro-batch-size": "2",
            "global-batch-size": "16",
            "seq-length": "1024",
        }
    ),
)
_TITAN: Final = MappingProxyType(
    {
        "training.batch-size": "1",
        "training.seq-len": "8192",
        "activation-checkpoint.mode": "selective",
        "parallelism.data-parallel-shard-degree": "-1",
    }
)
"""Defaults of Primus's torchtitan back end."""
_SWITCHES: Final = MappingProxyType(
    {
        "gradient-accumulation-fusion": ("no-gradient-accumulation-fusion", "false"),
        "overlap-p2p-comm": ("no-overlap-p2p-communication", "false"),
        "add-bias-linear": ("disable-bias-linear", "false"),
        "bias-swiglu-fusion": ("no-bias-swiglu-fusion", "false"),
    }
)
"""Primus's name -> Megatron-LM's switch, and the value of the setting at which the switch is on."""
_ON: Final = ("1", "True", "true")


def _megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """One (argument, value) pair of Megatron-LM for an override of Primus's Megatron back end."""
    if name in _SWITCHES:
        switch, at = _SWITCHES[name]
        return ((switch, str(value.lower() == at).lower()),)
    if name == "fp8":
        return (("fp8-format", value),)
    if name == "virtual-pipeline-model-parallel-size":
        return (("num-virtual-stages-per-pipeline-rank", value),)
    if name in ("sequence-parallel", "context-parallel"):
        return ((name, "true" if value in _ON else "false"),)
    return ((name, value),)


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.YAML}),
    own=frozenset(
        {
            f"{section}{name}"
            for section in _SECTIONS
            for name in ("framework", "config", "model", "overrides.*")
        }
    ),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert Primus's settings to a launch by the reader of the back end (default Megatron)."""
    section = next(
        (
            section
            for section in _SECTIONS
            if any(name.startswith(section) for name in file_settings.arguments)
        ),
        _SECTIONS[0],
    )
    filled = {
        name: _VARIABLE.sub(lambda match: match[2], value)
        for name, value in file_settings.arguments.items()
    }
    notes = tuple(
        f"assumed: {variable[1]} is {variable[2]}, its default in the file"
        for variable in _variables(file_settings.arguments, section)
    )
    before = f"{section}overrides."
    overrides = {
        name.removeprefix(before): value
        for name, value in filled.items()
        if name.startswith(before)
    }
    refuse(overrides, _REFUSED)
    backend = filled.get(f"{section}framework", "megatron")
    if backend not in ("megatron", "torchtitan"):
        raise DataError(
            f"framework {backend[:40]} of Primus is not priced here",
            hint="megatron or torchtitan",
        )
    own = runtime if runtime != "megatron-core-0.12" else ""
    if backend == "torchtitan":
        unset = {name: value for name, value in _TITAN.items() if name not in overrides}
        inner = replace(
            file_settings,
            arguments={
                **unset,
                **{n: v for n, v in overrides.items() if not n.startswith("primus-turbo.")},
            },
        )
        launch = TORCHTITAN.read(
            inner, model=model, devices=devices, runtime=own or TORCHTITAN.runtime
        )
    else:
        unset = {
            name: value
            for name, value in _MEGATRON.defaults.items()
            if name not in overrides and "dropout" not in name
        }
        rest = {name: value for name, value in overrides.items() if not _is_primus_setting(name)}
        launch = read_arguments(
            _MEGATRON,
            replace(file_settings, arguments=rest),
            model=model,
            devices=devices,
            runtime=own or USUAL_RUNTIME,
        )
    notes = (*notes, *default_notes(unset, DOCS))
    settings = tuple(_verdicts(file_settings.arguments, launch, section))
    return replace(launch, framework="primus", settings=settings, notes=(*launch.notes, *notes))


PRIMUS: Final = LaunchReader(
    name="primus",
    runtime="megatron-core-0.12",
    target="megatron",
    signature=SIGNATURE,
    read=_read,
    own_name=lambda name: f"modules.pre_trainer.overrides.{name.replace('-', '_')}",
)


def _is_primus_setting(name: str) -> bool:
    """True if a setting is Primus's own and not one of its back end."""
    return entry_of(name, {**_IGNORED, **_UNMODELLED}) is not None


def _variables(arguments: Arguments, section: str) -> Iterator[re.Match[str]]:
    """Yield matches of variables with a default, ``${NAME:default}``, in the section's settings."""
    for name, value in arguments.items():
        if name.startswith(section):
            yield from _VARIABLE.finditer(value)


def _verdicts(arguments: Arguments, launch: Launch, section: str) -> Iterator[LaunchSetting]:
    """Yield a verdict on every setting: Primus's own by its tables, others as the back end's."""
    inner = {setting.name: setting for setting in launch.settings}
    own = {f"{section}overrides.{name}": reason for name, reason in _IGNORED.items()} | dict(
        _IGNORED
    )
    unmodelled = {f"{section}overrides.{name}": reason for name, reason in _UNMODELLED.items()}
    outer = {
        f"{section}framework": "the back end",
        f"{section}config": "the back end's defaults",
        **{f"{section}overrides.{name}": "as it is priced" for name in _REFUSED},
    }
    for one in setting_verdicts(
        arguments,
        understood=outer,
        ignored={**own, f"{section}model": "the model, which MODEL says"},
    ):
        short = one.name.removeprefix(f"{section}overrides.")
        short = short if short in inner else canonical_name(short)
        if one.verdict is Verdict.UNKNOWN and short in inner:
            yield replace(inner[short], name=one.name, value=one.value)
        elif one.verdict is Verdict.UNKNOWN and _is_primus_setting(short):
            why = entry_of(one.name, unmodelled) or ""
            off = one.value.lower() in ("false", "0", "none")
            verdict = Verdict.IGNORED if off else Verdict.UNKNOWN
            yield replace(one, verdict=verdict, means=f"not counted: {why}" if not off else "off")
        else:
            yield one
    yield from (
        one
        for name, one in inner.items()
        if one.verdict is Verdict.DIFFERENT and f"{section}overrides.{name}" not in arguments
    )
