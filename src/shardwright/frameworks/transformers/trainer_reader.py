"""Launches of Transformers' Trainer and of frameworks built on it, in the words of
TrainingArguments.

Source of names and defaults: Transformers 4.57, training_args.py
(https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments);
Accelerate 1.15.0 for FSDP; DeepSpeed 0.19.8 for its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.accelerate.read import of_launch
from shardwright.frameworks.deepspeed.read import DEEPSPEED
from shardwright.frameworks.launch.framework_claims import (
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.fused_losses import liger_notes, linear_loss
from shardwright.frameworks.launch.launch import Launch, LaunchReader, Written, assumed
from shardwright.frameworks.launch.launch_degrees import OF_TRANSFORMERS as AXES
from shardwright.frameworks.launch.launch_degrees import launch_of, replicas
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.pytorch_fsdp.read import STRATEGIES, sharding
from shardwright.frameworks.settings.name_lists import entry_of, names
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
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import Arguments
from shardwright.strategy.grid.axes import Grid, Recompute

FSDP: Final = "torchtitan-0.2"
"""The runtime by which FSDP is priced: PyTorch's, without torchtitan's own models."""
OF_TRANSFORMERS: Final = "deepspeed-0.16"
"""The runtime of Transformers' eager models, by which replicas, one device and states in host
memory are priced."""
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
    """How a framework names what TrainingArguments have.

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
    placed = _placed(said, words, model=model, devices=devices, node_devices=written.node_devices)
    adapters = adapters_of(said.get("lora-rank", ""), said.get("lora-target", "all"), model)
    launch = launch_of(
        written,
        placed.grid,
        framework=words.framework,
        runtime=placed.runtime if runtime in ("", FSDP) else runtime,
        model=model,
        seq_len=count(said, "seq-len"),
        global_batch=placed.batch,
        precision=_precision(said, placed, adapters=bool(adapters.train)),
        table=_table(words, written.arguments),
        arguments=_options(said, placed),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A launch's strategy and what prices it.

    Args:
        sharded: parameters are sharded by FSDP, deepspeed: DeepSpeed holds an fp32 copy of them.
        arguments: settings of DeepSpeed.
    """

    grid: Grid
    batch: int
    runtime: str
    sharded: bool = False
    deepspeed: bool = False
    arguments: Arguments = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def on(said: Arguments, name: str) -> bool:
    """Whether a switch is on."""
    return said.get(name, "false").strip().lower() in ("true", "1", "yes", "on")


CLASSES: Final = ("trainingarguments.", "seq2seqtrainingarguments.", "sftconfig.")
"""How settings begin where a Python file calls the class of arguments."""


def _stripped(name: str) -> str:
    return name.removeprefix(next((start for start in CLASSES if name.startswith(start)), ""))


def _is_open(name: str, value: str) -> bool:
    """Whether a file of DeepSpeed leaves a setting to the program."""
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


def _placed(
    said: Arguments, words: Words, *, model: Model, devices: int, node_devices: int
) -> Placed:
    tp, cp = count(said, "tensor-parallel", 1), count(said, "context-parallel", 1)
    ulysses = count(said, "ulysses", 1)
    dp = replicas(devices, tp=tp, cp=cp * ulysses)
    micro, steps = (
        count(said, "per-device-train-batch-size", 1),
        count(said, "gradient-accumulation-steps", 1),
    )
    samples = count(said, "train-batch-size")
    if samples and "per-device-train-batch-size" not in said:
        micro = max(samples // (dp * steps), 1)
    full = on(said, "gradient-checkpointing") or on(said, "fsdp.activation-checkpointing")
    grid = Grid(
        tp=tp,
        sp=tp > 1 and words.splits_stream,
        cp=cp * ulysses,
        ulysses=ulysses,
        gather=cp > 1 and said.get("context-method", "allgather") == "allgather",
        dp=dp,
        microbatch=micro,
        recompute=Recompute.FULL if full else Recompute.NONE,
    )
    batch = samples or micro * steps * dp
    kind = said.get("distributed-type", "").upper()
    if kind == "DEEPSPEED" or any(name.startswith("zero-optimization.") for name in said):
        return _under_deepspeed(said, grid, batch, model=model)
    strategies = said.get("fsdp", "").lower().split()
    if (
        kind == "FSDP"
        or (strategies and strategies != ["no_shard"])
        or any(name.startswith("fsdp.") for name in said)
    ):
        return _under_fsdp(said, grid, batch, strategies, node_devices=node_devices)
    if tp > 1 or cp > 1:
        raise DataError(
            f"tensor parallelism {tp} x context parallelism {cp} without FSDP is not priced here",
            hint="a launch with FSDP or DeepSpeed",
        )
    told = ("replicas (PyTorch DDP) are priced as DeepSpeed's stage 0",) if dp > 1 else ()
    return Placed(grid=grid, batch=batch, runtime=OF_TRANSFORMERS, notes=told)


def _under_deepspeed(said: Arguments, grid: Grid, batch: int, *, model: Model) -> Placed:
    """The grid under DeepSpeed's settings, which the file has or its named configuration does."""
    if grid.cp > grid.ulysses:
        raise DataError(
            "context parallelism in rings under DeepSpeed is not priced here",
            hint="a launch with FSDP, or without it",
        )
    settings = {
        name: value
        for name, value in said.items()
        if name.startswith(("zero-optimization.", "compile.", "optimizer."))
    }
    for ours, its in (
        ("deepspeed-config.zero-stage", "zero-optimization.stage"),
        ("deepspeed-config.offload-optimizer-device", "zero-optimization.offload-optimizer.device"),
        ("deepspeed-config.offload-param-device", "zero-optimization.offload-param.device"),
    ):
        if ours in said:
            settings.setdefault(its, said[ours])
    sizes = {
        "train-micro-batch-size-per-gpu": str(grid.microbatch),
        "train-batch-size": str(batch),
        "sequence-parallel-size": str(grid.cp),
        "tensor-parallel.autotp-size": str(grid.tp),
    }
    written = Written(arguments={**settings, **sizes})
    found = DEEPSPEED.read(written, model=model, devices=grid.devices, runtime=OF_TRANSFORMERS)
    grid = replace(grid, sp=False, zero=found.grid.zero, offload=found.grid.offload)
    return Placed(
        grid=grid, batch=batch, runtime=OF_TRANSFORMERS, deepspeed=True, arguments=settings
    )


def _under_fsdp(
    said: Arguments, grid: Grid, batch: int, words: list[str], *, node_devices: int
) -> Placed:
    kept = said.get("fsdp.reshard-after-forward", "true")
    named = next(
        (word for word in words if word in STRATEGIES), said.get("fsdp.sharding-strategy", kept)
    )
    # FSDP shards over context parallelism too.
    shards = count(said, "dp-shard") * grid.cp
    found = sharding(
        named,
        replicas=grid.dp * grid.cp,
        replicate=count(said, "dp-replicate", 1),
        node_devices=node_devices,
        shards=shards,
    )
    zero, shard, notes = found.zero, found.shard, list(found.notes)
    offload = "offload" in words or on(said, "fsdp.offload-params")
    if offload or grid.ulysses > 1 or grid.devices == 1:
        if grid.cp > grid.ulysses or grid.tp > 1:
            raise DataError(
                "FSDP's CPU offload beside tensor or context parallelism is not priced here",
                hint="a launch without offload",
            )
        what = "its states in host memory" if offload else "Ulysses's exchange of heads"
        if grid.devices > 1:
            notes.append(f"FSDP with {what} is priced as DeepSpeed's ZeRO-{zero}")
        grid = replace(
            grid, sp=False, zero=zero, shard=shard, offload=100 if offload and zero else 0
        )
        moved = {"zero-optimization.offload-param.device": "cpu"} if offload and zero == 3 else {}
        return Placed(
            grid=grid,
            batch=batch,
            runtime=OF_TRANSFORMERS,
            sharded=True,
            arguments=moved,
            notes=tuple(notes),
        )
    return Placed(
        grid=replace(grid, zero=zero, shard=shard),
        batch=batch,
        runtime=FSDP,
        sharded=True,
        notes=tuple(notes),
    )


def _precision(said: Arguments, placed: Placed, *, adapters: bool) -> str:
    """The recipe of number formats.

    Mixed precision keeps an fp32 copy under FSDP and DeepSpeed; elsewhere the trained weights have
    the dtype in which they were loaded.
    """
    mixed = said.get("mixed-precision", "").lower()
    for name in ("fp8", "fp16", "bf16"):
        if mixed == name or on(said, name) or on(said, f"{name}.enabled"):
            narrow = (
                name == "bf16"
                and said.get("weights") == "bf16"
                and not (placed.sharded or placed.deepspeed or adapters)
            )
            return "bf16-pure" if narrow else name
    if said.get("weights") == "bf16":
        return "bf16" if adapters or placed.deepspeed else "bf16-pure"
    return "tf32" if on(said, "tf32") else "fp32"


_EIGHT_BIT: Final = names(
    "adamw_bnb_8bit adamw_8bit paged_adamw_8bit adamw_torch_8bit"
    " paged_adamw_8_bit pagedadamw8bit adamw8bit"
)
_ADAM: Final = names(
    "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused adamw adam"
    " paged_adamw paged_adamw_32bit adamw_torch_xla adamw_torch_npu_fused"
    " adamwscheduleradapter"
)


def _options(said: Arguments, placed: Placed) -> Arguments:
    """Settings as arguments by which options of the runtime are set.

    Raises:
        DataError: an optimizer whose states are not priced.
    """
    name = said.get("optim", "adamw_torch").lower()
    if name not in (*_ADAM, *_EIGHT_BIT):
        raise DataError(
            f"optimizer {name[:40]}: its states are not priced here",
            hint="AdamW with states of 32 or 8 bits",
        )
    found = {**placed.arguments, **linear_loss(said)}
    if placed.runtime == FSDP:
        found |= {"compile.enable": "true"} if on(said, "torch-compile") else {}
        pure = (
            said.get("weights") == "bf16"
            and not any(on(said, one) for one in ("bf16", "fp16"))
            and not said.get("mixed-precision")
        )
        found |= {"training.dtype": "bfloat16"} if pure else {}
    else:
        found |= {"compile.enabled": "true"} if on(said, "torch-compile") else {}
        # Its collectives overlap by default with ZeRO-3 alone; DDP's and FSDP's always do.
        stage = found.get("zero-optimization.stage", "3")
        found.setdefault(
            "zero-optimization.overlap-comm", str(not placed.deepspeed or stage == "3").lower()
        )
    return {**found, "optim": "adamw_8bit"} if name in _EIGHT_BIT else found


def _lengths(said: Arguments) -> tuple[str, ...]:
    if "seq-len" not in said or on(said, "packing"):
        return ()
    return (f"samples are not packed: each is counted at its full {said['seq-len'][:12]} tokens",)


def _said_of(
    grid: Grid, *, runtime: str, global_batch: int, names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """A strategy in the words of TrainingArguments, or a framework's own `names` for them."""
    options = dict(grid.options)
    by_fsdp = runtime == FSDP
    said = {
        "per-device-train-batch-size": str(grid.microbatch),
        "gradient-accumulation-steps": str(max(global_batch // (grid.microbatch * grid.dp), 1)),
        "gradient-checkpointing": str(grid.recompute is not Recompute.NONE).lower(),
        "torch-compile": (
            str(options.get("kernels", "compiled" if by_fsdp else "eager") == "compiled").lower()
        ),
        "tensor-parallel": str(grid.tp) if grid.tp > 1 else "",
        "context-parallel": str(grid.ring) if grid.ring > 1 else "",
        "ulysses": str(grid.ulysses) if grid.ulysses > 1 else "",
        "optim": "adamw_8bit" if options.get("moments") == "8bit" else "",
        "fsdp.reshard-after-forward": str(grid.zero == 3).lower() if by_fsdp and grid.zero else "",
        "zero-optimization.stage": str(grid.zero) if not by_fsdp and grid.zero else "",
        "zero-optimization.offload-optimizer.device": "cpu" if grid.offload else "",
        "zero-optimization.offload-param.device": (
            "cpu" if options.get("param_offload") == "on" else ""
        ),
        "zero-optimization.overlap-comm": (
            {"on": "true", "off": "false"}.get(options.get("grad_overlap", ""), "")
        ),
    }
    for name, value in said.items():
        own = names.get(name, name)
        if value and own.startswith("!"):
            yield own[1:].replace("-", "_"), str(value != "true").lower()
        elif value:
            yield own.replace("-", "_"), value


def trainer_settings(words: Words, grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
    """Settings of a strategy in the words of a framework on Trainer; see `NamesSettings`."""
    return dict(_said_of(grid, runtime=runtime, global_batch=global_batch, names=_own_names(words)))


def _own_names(words: Words) -> dict[str, str]:
    """Canonical name -> the framework's own: the first that is read as it."""
    first = {canonical: name for name, canonical in reversed(list(words.renamed.items()))}
    return {**first, **words.own_names}


def of_own_runtimes(words: Words, grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
    """As `trainer_settings`; none on a runtime that Trainer does not start."""
    if runtime.partition(" ")[0] not in (FSDP, OF_TRANSFORMERS):
        return {}
    return trainer_settings(words, grid, runtime=runtime, global_batch=global_batch)
