"""Reader of launches of Transformers' Trainer and of frameworks built on it.

Source of names and defaults: Transformers 4.57, training_args.py
(https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments);
Accelerate 1.15.0 for FSDP; DeepSpeed 0.19.8 for its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.accelerate.read import with_launch_flags
from shardwright.frameworks.launch.build_launch import OF_TRANSFORMERS as AXES
from shardwright.frameworks.launch.build_launch import launch_of
from shardwright.frameworks.launch.framework_detection import (
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.fused_losses import liger_notes
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
    default_notes,
)
from shardwright.frameworks.settings.refuse_unpriced_settings import (
    OFF,
    Refusal,
    priced_notes,
    refuse,
)
from shardwright.frameworks.settings.setting_table import SettingTable
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.setting_verdicts import (
    LaunchSetting,
    Verdict,
    setting_verdicts,
)
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import entry_of
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import (
    FSDP,
    OF_TRANSFORMERS,
    is_on,
    precision_recipe,
    runtime_arguments_of,
    strategy_settings,
    trainer_strategy,
)
from shardwright.frameworks.transformers.settings import (
    CANONICAL,
    IGNORED,
    REFUSED,
    UNDERSTOOD,
    UNMODELLED,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.parallelism_grid import Grid

Settled = Callable[[dict[str, str], int], tuple[str, ...]]
"""Function that completes a launch's canonical settings in place, for a number of devices, and
returns notes."""


REPLICAS_ALONE: Final = (*AXES, ("tp", ("1",)), ("cp", ("1",)))
"""Limits of frameworks on Trainer without tensor and context parallelism."""


def files_of(*settings: str, own: Mapping[str, Arguments] | None = None) -> tuple[NamedFile, ...]:
    """Settings of a launch on Trainer that name further files, DeepSpeed's first.

    Args:
        settings: settings that name a file of the framework; empty = the program's first argument.
        own: the framework's own DeepSpeed files, by name.
    """
    return (
        NamedFile(setting="deepspeed", holds="the stage of ZeRO", own=frozenset(own or {})),
        *(
            NamedFile(setting=setting, holds="what is trained, and the batch")
            for setting in settings
        ),
    )


def _no_completion(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Leave the settings as they are; return no notes."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNames:
    """A framework's names for the Trainer's settings, with defaults and refusals.

    Args:
        framework: name of the reader.
        renamed: the framework's name -> canonical name (`transformers.settings.UNDERSTOOD`).
        defaults: canonical name -> value where no file sets it.
        source: documentation of these defaults.
        refused: settings whose effect is not priced.
        understood: the framework's own settings that `settled` reads -> meaning.
        ignored, unmodelled: as in `setting_verdicts`.
        settled: function that completes the canonical settings.
        programs: last word of a program's name -> training method that is not priced.
        deepspeed_files: the framework's own configurations of DeepSpeed, by name -> settings of
            each.
        own_names: canonical name -> the framework's name, where that is not the first of `renamed`;
            ``!`` before it: the switch has the opposite sense.
        possible: see `Launch`.
        splits_stream: tensor parallelism splits the activations between GEMMs along the sequence.
    """

    framework: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    understood: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    unmodelled: Mapping[str, str] = field(default_factory=dict)
    settled: Settled = _no_completion
    programs: Mapping[str, str] = field(default_factory=dict)
    deepspeed_files: Mapping[str, Arguments] = field(default_factory=dict)
    own_names: Mapping[str, str] = field(default_factory=dict)
    possible: tuple[tuple[str, tuple[str, ...]], ...] = AXES
    splits_stream: bool = False


def trainer_reader(
    names: TrainerNames,
    *,
    signature: Signature,
    includes: frozenset[str] = frozenset({"deepspeed", "accelerate"}),
    in_yaml: frozenset[str] = frozenset(),
) -> LaunchReader:
    """Reader of a framework that runs Transformers' Trainer.

    Args:
        in_yaml: settings that identify a YAML file of this framework, although commands of other
            frameworks have them too.
    """

    def evidence(signature: Signature, document: Document) -> Claim:
        """Claim on a file; of a YAML file, settings in `in_yaml` are shared evidence, too."""
        claim = claim_of(signature, document)
        if document.kind is not FileKind.YAML:
            return claim
        return replace(claim, shared=(*claim.shared, *sorted(in_yaml & document.settings.keys())))

    return LaunchReader(
        name=names.framework,
        runtime=FSDP,
        signature=signature,
        read=partial(read_trainer, names),
        evidence=evidence,
        includes=includes,
        settings_of=partial(trainer_settings, names),
    )


def read_trainer(
    names: TrainerNames, file_settings: FileSettings, *, model: Model, devices: int, runtime: str
) -> Launch:
    """Convert a framework's settings, renamed to Trainer's, to a launch with verdicts."""
    renamed_flags = with_launch_flags(file_settings.arguments)
    named = {_stripped(name): name for name in renamed_flags}
    file_settings = replace(
        file_settings, arguments={name: renamed_flags[own] for name, own in named.items()}
    )
    _refuse_program(file_settings.program, names)
    refuse(file_settings.arguments, {**REFUSED, **names.refused})
    renamed = {**CANONICAL, **names.renamed}
    settings = {
        renamed.get(name, name): value
        for name, value in file_settings.arguments.items()
        if not _is_open(name, value)
    }
    unset = {name: value for name, value in names.defaults.items() if name not in settings}
    settings = {**names.defaults, **settings}
    notes = (*names.settled(settings, devices), *_add_named_deepspeed_file(settings, names))
    placed = trainer_strategy(
        settings,
        splits_stream=names.splits_stream,
        model=model,
        devices=devices,
        node_devices=file_settings.node_devices,
    )
    adapters = adapters_of(settings.get("lora-rank", ""), settings.get("lora-target", "all"), model)
    launch = launch_of(
        file_settings,
        placed.grid,
        framework=names.framework,
        runtime=placed.runtime if runtime in ("", FSDP) else runtime,
        model=model,
        seq_len=count(settings, "seq-len"),
        global_batch=placed.batch,
        precision=precision_recipe(settings, placed, adapters=bool(adapters.train)),
        table=_setting_table(names, file_settings.arguments),
        arguments=runtime_arguments_of(settings, placed),
    )
    all_notes = (
        *default_notes(unset, names.source),
        *notes,
        *placed.notes,
        *adapters.notes,
        *_unpacked_length_notes(settings),
        *liger_notes(file_settings.arguments),
    )
    return replace(
        launch,
        settings=tuple(
            replace(setting, name=named.get(setting.name, setting.name))
            for setting in launch.settings
        ),
        train=adapters.train,
        possible=names.possible,
        notes=(*launch.notes, *all_notes),
    )


def judged_settings(names: TrainerNames, file_settings: FileSettings) -> dict[str, LaunchSetting]:
    """Setting -> verdict, of settings that are understood, ignored or known as not counted."""
    table = _setting_table(names, file_settings.arguments)
    verdicts = setting_verdicts(
        file_settings.arguments,
        understood=table.understood,
        ignored=table.ignored,
        unmodelled=table.unmodelled,
    )
    return {
        setting.name: setting
        for setting in verdicts
        if setting.verdict is not Verdict.UNKNOWN or setting.means.startswith("not counted")
    }


def _setting_table(names: TrainerNames, arguments: Arguments) -> SettingTable:
    """Setting table (verdicts and reasons) of a framework on Trainer for one launch."""
    return SettingTable(
        version="",
        rows=(),
        understood=_meanings(names, arguments),
        ignored={**IGNORED, **names.ignored},
        unmodelled=_unmodelled(names, arguments),
        refused={**REFUSED, **names.refused},
    )


def _meanings(names: TrainerNames, arguments: Arguments) -> dict[str, str]:
    """Setting under the framework's name -> meaning, for understood, priced and off settings."""
    renamed = {**CANONICAL, **names.renamed}
    means = {name: UNDERSTOOD[of] for name, of in renamed.items() if of in UNDERSTOOD}
    idle = {
        name: "off"
        for name, value in arguments.items()
        if value.lower() in OFF and _unmodelled(names, {name: "on"})
    }
    refused = priced_notes(arguments, {**REFUSED, **names.refused})
    return {**refused, **UNDERSTOOD, **means, **names.understood, **idle}


def _unmodelled(names: TrainerNames, arguments: Arguments) -> dict[str, str]:
    """Setting -> effect that is not counted, for settings that are not off."""
    table = {**UNMODELLED, **names.unmodelled}
    reasons = {name: entry_of(name, table) for name in arguments}
    return {
        name: why for name, why in reasons.items() if why and arguments[name].lower() not in OFF
    }


CLASSES: Final = ("trainingarguments.", "seq2seqtrainingarguments.", "sftconfig.")
"""Prefixes of settings in a Python file that calls the class of arguments."""


def _stripped(name: str) -> str:
    """Setting's name without the prefix of an arguments class."""
    return name.removeprefix(next((start for start in CLASSES if name.startswith(start)), ""))


def _is_open(name: str, value: str) -> bool:
    """True if a setting is ``auto``, left to the program, and dotted, a batch size or steps."""
    return value == "auto" and ("." in name or name.endswith(("batch-size", "steps", "per-gpu")))


def _refuse_program(program: str, names: TrainerNames) -> None:
    """Raise DataError if the program trains by a method that is not priced."""
    verb = program.replace("/", " ").removesuffix(".py").split()[-1:]
    for word, what in names.programs.items():
        if [word] == verb:
            raise DataError(
                f"{program[:60]}: {what} is not priced here",
                hint="supervised fine-tuning and pretraining are",
            )


def _add_named_deepspeed_file(settings: dict[str, str], names: TrainerNames) -> tuple[str, ...]:
    """Add the framework's own DeepSpeed file that a launch names; return a note; or DataError.

    Raises:
        DataError: the file is none of the framework's own, and not among the given files.
    """
    name = settings.get("deepspeed", "").strip()
    if name.lower() in OFF | {"true"} or any(
        setting.startswith("zero-optimization.") for setting in settings
    ):
        return ()
    known = names.deepspeed_files.get(name) or names.deepspeed_files.get(name.rpartition("/")[2])
    if known is None:
        raise DataError(
            f"the launch names DeepSpeed's file {name[:60]}, which is not among the files",
            hint="give it beside the others",
        )
    settings |= {key: value for key, value in known.items() if key not in settings}
    return (
        (
            f"assumed: {name[:60]} is the framework's own, with"
            f" {', '.join(f'{key} {value}' for key, value in known.items())}"
        ),
    )


def _unpacked_length_notes(settings: Arguments) -> tuple[str, ...]:
    """Note that unpacked samples are counted at full length; empty if packed."""
    if "seq-len" not in settings or is_on(settings, "packing"):
        return ()
    return (
        f"samples are not packed: each is counted at its full {settings['seq-len'][:12]} tokens",
    )


def trainer_settings(
    names: TrainerNames, grid: Grid, *, runtime: str, global_batch: int
) -> Arguments:
    """Settings that express a grid for a framework on Trainer, under the framework's names."""
    return dict(
        strategy_settings(grid, runtime=runtime, global_batch=global_batch, names=_own_names(names))
    )


def _own_names(names: TrainerNames) -> dict[str, str]:
    """Canonical name -> the framework's own name for it."""
    first = {canonical: name for name, canonical in reversed(list(names.renamed.items()))}
    return {**first, **names.own_names}


def settings_if_supported(
    names: TrainerNames, grid: Grid, *, runtime: str, global_batch: int
) -> Arguments:
    """Settings of a grid by `trainer_settings`; empty for runtimes that do not price Trainer."""
    if runtime.partition(" ")[0] not in (FSDP, OF_TRANSFORMERS):
        return {}
    return trainer_settings(names, grid, runtime=runtime, global_batch=global_batch)
