"""Launches of Transformers' Trainer and of frameworks built on it, in the words of
TrainingArguments.

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
from shardwright.frameworks.accelerate.read import of_launch
from shardwright.frameworks.launch.framework_claims import (
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.fused_losses import liger_notes
from shardwright.frameworks.launch.launch import Launch, LaunchReader, Written, assumed
from shardwright.frameworks.launch.launch_degrees import OF_TRANSFORMERS as AXES
from shardwright.frameworks.launch.launch_degrees import launch_of
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.settings.name_lists import entry_of
from shardwright.frameworks.settings.setting_table import SettingTable
from shardwright.frameworks.settings.unpriced_settings import OFF, Refusal, priced, refuse
from shardwright.frameworks.settings.value_forms import count
from shardwright.frameworks.settings.verdicts import Setting, Verdict, judged
from shardwright.frameworks.transformers.settings import (
    CANONICAL,
    IGNORED,
    REFUSED,
    UNDERSTOOD,
    UNMODELLED,
)
from shardwright.frameworks.transformers.trainer_strategy import (
    FSDP,
    OF_TRANSFORMERS,
    on,
    precision_of,
    runtime_settings,
    strategy_settings,
    trainer_strategy,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import Arguments
from shardwright.strategy.grid.grid import Grid

Settled = Callable[[dict[str, str], int], tuple[str, ...]]
"""Completes the canonical settings of a launch on so many devices in place; returns notes."""


REPLICAS_ALONE: Final = (*AXES, ("tp", ("1",)), ("cp", ("1",)))
"""The same without tensor and context parallelism."""


def files_of(*settings: str, own: Mapping[str, Arguments] | None = None) -> tuple[NamedFile, ...]:
    """The files that launches on Trainer name.

    Args:
        settings: that name a file of the framework's own; empty = the first word behind the
            program.
        own: its files of DeepSpeed, by name.
    """
    return (
        NamedFile(setting="deepspeed", holds="the stage of ZeRO", own=frozenset(own or {})),
        *(NamedFile(setting=one, holds="what is trained, and the batch") for one in settings),
    )


def _nothing(said: dict[str, str], devices: int) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A framework's names of the settings of TrainingArguments.

    Args:
        framework: word of its reader.
        renamed: its name -> the canonical one (`trainer_words.UNDERSTOOD`).
        defaults: canonical name -> value where no file sets it.
        source: where these defaults are documented.
        refused: its settings that change the answer and are not priced.
        understood: its own settings that `settled` reads -> what they say.
        ignored, unmodelled: as `launch.judged` takes them.
        settled: completes the canonical settings.
        programs: words of a program's name that start what is not priced -> what that is.
        deepspeed_files: the framework's own configurations of DeepSpeed, by name -> settings of
            each.
        own_names: canonical name -> its own one, where that is not the first of `renamed`; ``!``
            before it: the switch is the opposite.
        possible: see `Launch`.
        splits_stream: its tensor parallelism cuts the stream between products along the sequence
            too.
    """

    framework: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    understood: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    unmodelled: Mapping[str, str] = field(default_factory=dict)
    settled: Settled = _nothing
    programs: Mapping[str, str] = field(default_factory=dict)
    deepspeed_files: Mapping[str, Arguments] = field(default_factory=dict)
    own_names: Mapping[str, str] = field(default_factory=dict)
    possible: tuple[tuple[str, tuple[str, ...]], ...] = AXES
    splits_stream: bool = False


def trainer_reader(
    words: Words,
    *,
    signature: Signature,
    includes: frozenset[str] = frozenset({"deepspeed", "accelerate"}),
    in_yaml: frozenset[str] = frozenset(),
) -> LaunchReader:
    """The reader of a framework that runs Transformers' Trainer; see `LaunchReader`.

    Args:
        in_yaml: settings by which a YAML file is of this framework, where a command is of another
            one as well.
    """

    def evidence(signature: Signature, document: Document) -> Claim:
        found = claim_of(signature, document)
        if document.kind is not FileKind.YAML:
            return found
        return replace(found, shared=(*found.shared, *sorted(in_yaml & document.settings.keys())))

    return LaunchReader(
        name=words.framework,
        runtime=FSDP,
        signature=signature,
        read=partial(read_trainer, words),
        evidence=evidence,
        includes=includes,
        settings_of=partial(trainer_settings, words),
    )


def read_trainer(
    words: Words, written: Written, *, model: Model, devices: int, runtime: str
) -> Launch:
    """The launch that settings of a framework on Trainer are; see `LaunchReader`."""
    said_so = of_launch(written.arguments)
    named = {_stripped(name): name for name in said_so}
    written = replace(written, arguments={name: said_so[own] for name, own in named.items()})
    _refuse_program(written.program, words)
    refuse(written.arguments, {**REFUSED, **words.refused})
    renamed = {**CANONICAL, **words.renamed}
    said = {
        renamed.get(name, name): value
        for name, value in written.arguments.items()
        if not _is_open(name, value)
    }
    unset = {name: value for name, value in words.defaults.items() if name not in said}
    said = {**words.defaults, **said}
    notes = (*words.settled(said, devices), *_named_deepspeed(said, words))
    placed = trainer_strategy(
        said,
        splits_stream=words.splits_stream,
        model=model,
        devices=devices,
        node_devices=written.node_devices,
    )
    adapters = adapters_of(said.get("lora-rank", ""), said.get("lora-target", "all"), model)
    launch = launch_of(
        written,
        placed.grid,
        framework=words.framework,
        runtime=placed.runtime if runtime in ("", FSDP) else runtime,
        model=model,
        seq_len=count(said, "seq-len"),
        global_batch=placed.batch,
        precision=precision_of(said, placed, adapters=bool(adapters.train)),
        table=_table(words, written.arguments),
        arguments=runtime_settings(said, placed),
    )
    told = (
        *assumed(unset, words.source),
        *notes,
        *placed.notes,
        *adapters.notes,
        *_lengths(said),
        *liger_notes(written.arguments),
    )
    return replace(
        launch,
        settings=tuple(replace(one, name=named.get(one.name, one.name)) for one in launch.settings),
        train=adapters.train,
        possible=words.possible,
        notes=(*launch.notes, *told),
    )


def judged_settings(words: Words, written: Written) -> dict[str, Setting]:
    """The verdicts on the settings in these words, by name; those that are not understood are left
    out.
    """
    table = _table(words, written.arguments)
    found = judged(
        written.arguments,
        understood=table.understood,
        ignored=table.ignored,
        unmodelled=table.unmodelled,
    )
    return {
        one.name: one
        for one in found
        if one.verdict is not Verdict.UNKNOWN or one.means.startswith("not counted")
    }


def _table(words: Words, arguments: Arguments) -> SettingTable:
    """The settings of a framework on Trainer that a launch has."""
    return SettingTable(
        version="",
        rows=(),
        understood=_means(words, arguments),
        ignored={**IGNORED, **words.ignored},
        unmodelled=_unmodelled(words, arguments),
        refused={**REFUSED, **words.refused},
    )


def _means(words: Words, arguments: Arguments) -> dict[str, str]:
    renamed = {**CANONICAL, **words.renamed}
    means = {name: UNDERSTOOD[of] for name, of in renamed.items() if of in UNDERSTOOD}
    idle = {
        name: "off"
        for name, value in arguments.items()
        if value.lower() in OFF and _unmodelled(words, {name: "on"})
    }
    refused = priced(arguments, {**REFUSED, **words.refused})
    return {**refused, **UNDERSTOOD, **means, **words.understood, **idle}


def _unmodelled(words: Words, arguments: Arguments) -> dict[str, str]:
    """Of the settings those that change what is not counted, and are not off -> what that is."""
    table = {**UNMODELLED, **words.unmodelled}
    reasons = {name: entry_of(name, table) for name in arguments}
    return {
        name: why for name, why in reasons.items() if why and arguments[name].lower() not in OFF
    }


CLASSES: Final = ("trainingarguments.", "seq2seqtrainingarguments.", "sftconfig.")
"""Prefixes of settings in a Python file that calls the class of arguments."""


def _stripped(name: str) -> str:
    return name.removeprefix(next((start for start in CLASSES if name.startswith(start)), ""))


def _is_open(name: str, value: str) -> bool:
    """True if a DeepSpeed file leaves a setting to the program."""
    return value == "auto" and ("." in name or name.endswith(("batch-size", "steps", "per-gpu")))


def _refuse_program(program: str, words: Words) -> None:
    verb = program.replace("/", " ").removesuffix(".py").split()[-1:]
    for word, what in words.programs.items():
        if [word] == verb:
            raise DataError(
                f"{program[:60]}: {what} is not priced here",
                hint="supervised fine-tuning and pretraining are",
            )


def _named_deepspeed(said: dict[str, str], words: Words) -> tuple[str, ...]:
    """The settings of the DeepSpeed configuration that a launch names, where no file has them.

    Raises:
        DataError: it is none of the framework's own, and not among the files.
    """
    name = said.get("deepspeed", "").strip()
    if name.lower() in OFF | {"true"} or any(one.startswith("zero-optimization.") for one in said):
        return ()
    known = words.deepspeed_files.get(name) or words.deepspeed_files.get(name.rpartition("/")[2])
    if known is None:
        raise DataError(
            f"the launch names DeepSpeed's file {name[:60]}, which is not among the files",
            hint="give it beside the others",
        )
    said |= {key: value for key, value in known.items() if key not in said}
    return (
        (
            f"assumed: {name[:60]} is the framework's own, with"
            f" {', '.join(f'{key} {value}' for key, value in known.items())}"
        ),
    )


def _lengths(said: Arguments) -> tuple[str, ...]:
    if "seq-len" not in said or on(said, "packing"):
        return ()
    return (f"samples are not packed: each is counted at its full {said['seq-len'][:12]} tokens",)


def trainer_settings(words: Words, grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
    """Settings of a strategy in the words of a framework on Trainer; see `NamesSettings`."""
    return dict(
        strategy_settings(grid, runtime=runtime, global_batch=global_batch, names=_own_names(words))
    )


def _own_names(words: Words) -> dict[str, str]:
    """Canonical name -> the framework's own: the first that is read as it."""
    first = {canonical: name for name, canonical in reversed(list(words.renamed.items()))}
    return {**first, **words.own_names}


def of_own_runtimes(words: Words, grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
    """The settings of `trainer_settings`; none for a runtime that Trainer does not start."""
    if runtime.partition(" ")[0] not in (FSDP, OF_TRANSFORMERS):
        return {}
    return trainer_settings(words, grid, runtime=runtime, global_batch=global_batch)
