"""torchtitan's configurations: Python (0.3), TOML (before) or arguments.

Source of names and defaults: torchtitan 0.3.0, config/configs.py and
distributed/pipeline_parallel.py; of 0.1 and 0.2 config/job_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError, ShardwrightError
from shardwright.export.torchtitan import FLAVORS, SCHEDULES
from shardwright.launch_files.launch.framework_claims import (
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.launch_files.launch.fused_losses import OF_LOSS
from shardwright.launch_files.launch.launch import ORDER, Launch, Written, by_name, count
from shardwright.launch_files.launch.launch_degrees import launch_of, replicas
from shardwright.launch_files.launch.model_sizes import compared_name
from shardwright.launch_files.launch.unpriced_settings import OF_OPTIMIZER, OPTIMIZER, refuse
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.program.orders.pytorch_csv import schedule_csv
from shardwright.runtime.arguments import Arguments
from shardwright.strategy.grid.axes import Grid, Recompute
from shardwright.strategy.grid.expand import plan_of
from shardwright.strategy.grid.facts import num_layers
from shardwright.strategy.grid.schedules import GRID_SCHEDULES
from shardwright.strategy.plan.order import NamedOrder

_SECTIONS: Final = MappingProxyType(
    {
        "parallelismconfig.": "parallelism.",
        "trainingconfig.": "training.",
        "compileconfig.": "compile.",
        "config.activation-checkpoint": "activation-checkpoint.mode",
        "model-registry.converters": "model.converters",
        "training.max-context-length": "training.seq-len",
        "trainingconfig.max-context-length": "training.seq-len",
        "experimental.": "parallelism.",
        "training.batch-size": "training.local-batch-size",
        "training.compile": "compile.enable",
        "training.tensor-parallel-degree": "parallelism.tensor-parallel-degree",
        "training.data-parallel-": "parallelism.data-parallel-",
    }
)
"""How a section begins in Python and in older files -> its name."""
_P: Final = "parallelism."
_TOKENS: Final = MappingProxyType(
    {
        "training.num-tokens-per-microbatch-per-dp-rank": "training.local-batch-size",
        "training.num-tokens-per-train-step": "training.global-batch-size",
    }
)
"""Tokens (since 0.3) -> the samples that they are."""
_REFUSED: Final = MappingProxyType({"optimizer.name": OPTIMIZER})
UNDERSTOOD: Final = MappingProxyType(
    {
        f"{_P}data-parallel-replicate-degree": "replicas of shards",
        f"{_P}data-parallel-shard-degree": "members of a sharding group",
        f"{_P}fsdp-reshard-after-forward": "zero 2 or 3",
        f"{_P}tensor-parallel-degree": "tp",
        f"{_P}enable-sequence-parallel": "sp",
        f"{_P}context-parallel-degree": "cp",
        f"{_P}context-parallel-rotate-method": "ring or gather of cp",
        f"{_P}expert-parallel-degree": "ep",
        f"{_P}pipeline-parallel-degree": "pp",
        f"{_P}pipeline-parallel-schedule": "schedule",
        f"{_P}pipeline-parallel-schedule-csv": "order of the pipeline",
        f"{_P}pipeline-parallel-microbatch-size": "samples of a microbatch",
        f"{_P}pipeline-parallel-layers-per-stage": "vpp",
        f"{_P}pipeline-parallel-first-stage-less-layers": "layers of the first stage",
        f"{_P}pipeline-parallel-last-stage-less-layers": "layers of the last stage",
        f"{_P}module-fqns-per-model-part": "layers of each chunk",
        "training.seq-len": "tokens of a sample",
        "training.global-batch-size": "samples of a step",
        "training.local-batch-size": "samples of a replica",
        "activation-checkpoint.mode": "recompute",
        "optimizer.name": OF_OPTIMIZER,
        **dict.fromkeys(("config.loss", "config.num-chunks"), OF_LOSS),
        "training.dtype": "number format",
        "compile.enable-async-tensor-parallel": "sets tp_overlap",
        "compile.components": "sets kernels",
        "model.converters": "products in 8 bits",
        **dict.fromkeys(_TOKENS, "tokens of a microbatch or of a step"),
        ORDER: "order of the pipeline",
    }
)
IGNORED: Final = by_name(
    {
        "how fast is learnt": (
            "optimizer.* lr-scheduler.* training.steps training.max-norm default-adamw.*"
        ),
        "what is logged, how it starts": (
            "metrics.* profiling.* profiler.* comm.* debug.* job.* validation.*"
        ),
        "checkpoints": "checkpoint.* checkpointconfig.* fault-tolerance.*",
        "the model's, and data": (
            "model.* config.* tokenizer.* training.dataset* dataloader.* hf-assets-path"
        ),
        "parts that are set as a whole": (
            "compile parallelism training model-spec activation-checkpoint checkpoint"
            " model-registry"
        ),
        "how it runs": (
            "training.seed training.deterministic training.gc-freq training.disable-cuda-graphs"
            " training.enable-cpu-offload activation-checkpoint.* module config memory-estimation.*"
            " quantize.* module.* loss.*"
        ),
        "which products, and when scales are made": (
            "float8.filter-fqns float8.precompute-float8-dynamic-scale-for-fsdp"
        ),
    }
)
_NAMES: Final = {name.lower(): ours for ours, name in SCHEDULES.items()}
_SINGLE: Final = ("1f1b", "gpipe")
"""Schedules of one chunk a rank; others have two where nothing is said."""


_DEGREES: Final = frozenset(
    f"{_P}{name}-parallel-{what}" for name, what in (("tensor", "degree"), ("pipeline", "degree"))
) | {f"{_P}data-parallel-shard-degree"}
_REGISTRY: Final = frozenset(
    {"config.training", "config.parallelism", "config.model-spec", "trainingconfig.steps"}
)
"""What a function of a registry (config_registry.py of the module) sets."""
SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.TOML, FileKind.PYTHON, FileKind.COMMAND}),
    programs=frozenset({"torchtitan.train", "torchtitan/train.py"}),
    own=frozenset(
        f"{section}{name}"
        for section in (_P, "parallelismconfig.", "experimental.", "training.")
        for name in (
            *(
                "tensor-parallel-degree",
                "data-parallel-shard-degree",
                "data-parallel-replicate-degree",
                "context-parallel-degree",
            ),
            *(
                "pipeline-parallel-degree",
                "expert-parallel-degree",
                "pipeline-parallel-schedule",
                "enable-async-tensor-parallel",
            ),
        )
    )
    | {
        "training.local-batch-size",
        "job.config-file",
        "trainingconfig.local-batch-size",
        "activation-checkpoint.selective-ac-option",
    },
    files=(
        NamedFile(setting="job.config-file", holds="the strategy", instead=_DEGREES),
        NamedFile(
            setting="module", holds="the strategy", instead=_DEGREES | _REGISTRY, ending=".py"
        ),
    ),
    shared=frozenset({"training.seq-len", "activation-checkpoint.mode", "model.flavor"}),
)


@dataclass(frozen=True, slots=True)
class TorchtitanReader:
    """The reader."""

    name: str = "torchtitan"
    runtime: str = "torchtitan-0.2"
    signature: Signature = SIGNATURE
    includes: frozenset[str] = frozenset()

    target: str = "torchtitan"

    def claims(self, document: Document) -> Claim:
        """See `LaunchReader`."""
        return claim_of(self.signature, document)

    def worded(self, name: str) -> str:
        """See `LaunchReader`."""
        return name

    def read(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """See `LaunchReader`."""
        written = replace(written, arguments=dict(_canonical(written.arguments)))
        said = written.arguments
        refuse(said, _REFUSED)
        tp, pp, cp = (
            count(said, f"{_P}{axis}-parallel-degree", 1)
            for axis in ("tensor", "pipeline", "context")
        )
        dp = replicas(devices, tp=tp, pp=pp, cp=cp)
        replicate, sharded = (
            count(said, f"{_P}data-parallel-replicate-degree", 1),
            said.get(f"{_P}data-parallel-shard-degree", "-1"),
        )
        # Without a degree the rest is sharded over; with one of 1 all are replicas.
        shard = (
            dp // max(replicate, 1)
            if sharded.startswith("-")
            else count(said, f"{_P}data-parallel-shard-degree")
        )
        local = count(said, "training.local-batch-size", 1)
        grid = Grid(
            tp=tp,
            sp=tp > 1 and said.get(f"{_P}enable-sequence-parallel", "true") == "true",
            cp=cp,
            gather=cp > 1 and said.get(f"{_P}context-parallel-rotate-method") == "allgather",
            ep=count(said, f"{_P}expert-parallel-degree", 1),
            dp=dp,
            pp=pp,
            microbatch=(
                count(said, f"{_P}pipeline-parallel-microbatch-size", 1) if pp > 1 else local
            ),
            zero=_stage(said, pp) if shard * cp > 1 else 0,
            shard=shard * cp if shard < dp and shard * cp > 1 else 0,
            recompute=_recompute(said),
        )
        batch = said.get("training.global-batch-size", "-1")
        samples = local * dp if batch.startswith("-") else count(said, "training.global-batch-size")
        if pp > 1:
            grid = _pipelined(said, grid, model=model, batch=samples)
        return launch_of(
            written,
            grid,
            framework=self.name,
            runtime=runtime,
            model=model,
            seq_len=count(said, "training.seq-len"),
            global_batch=samples,
            precision=_precision(said),
            understood=UNDERSTOOD,
            ignored=IGNORED,
            of_model=tuple(compared_name(said, ("model.name", "model.flavor"), FLAVORS, model)),
            arguments=_options(said),
            notes=_loss_notes(said),
        )


TORCHTITAN: Final = TorchtitanReader()


def _canonical(arguments: Arguments) -> Iterator[tuple[str, str]]:
    found = {canonical_name(name): value for name, value in arguments.items()}
    length = count(found, "training.seq-len", 1) or 1
    for name, value in found.items():
        yield name, value
        if name in _TOKENS:
            yield (
                _TOKENS[name],
                value if value.startswith("-") else str(max(count(found, name) // length, 1)),
            )


def canonical_name(name: str) -> str:
    """A setting as it is called here, of Python files and of older ones."""
    before = max((one for one in _SECTIONS if name.startswith(one)), key=len, default="")
    return _SECTIONS.get(before, "") + name.removeprefix(before)


def _precision(said: Arguments) -> str:
    """The recipe of number formats.

    Raises:
        DataError: a converter that is not priced, as of adapters or of 4 bits.
    """
    words = [
        word.lower() for word in re.findall(r"[A-Za-z0-9_.]+", said.get("model.converters", ""))
    ]
    unknown = [
        word
        for word in words
        if not word.startswith(("float8", "mx", "quantize.linear", "quantize.grouped_mm"))
    ]
    if unknown:
        raise DataError(
            f"the converter {unknown[0][:40]} is not priced here", hint="Float8 or MXFP8"
        )
    if said.get("training.dtype", "float32") == "bfloat16":
        return "bf16-pure"
    return "fp8" if words else "bf16"


def _options(said: Arguments) -> Mapping[str, str]:
    """Settings as arguments, with the names by which options are set."""
    said = {
        name: value
        for name, value in said.items()
        if name != "compile.enable" or "model" in said.get("compile.components", "model")
    }
    if any(
        word in said.get("model.converters", "").lower()
        for word in ("mxfp8", "quantize.linear.mx", "mx")
    ):
        said = {**said, "mx.recipe-name": "mxfp8"}
    if _has_loss_in_parts(said) and said.get("config.num-chunks", "8") == "8":
        said = {**said, "linear-loss": "parts"}
    renamed = {"compile.enable-async-tensor-parallel": f"{_P}enable-async-tensor-parallel"}
    return {
        renamed.get(name, name): value
        for name, value in said.items()
        if value.lower() not in ("false", "none")
    }


def _has_loss_in_parts(said: Arguments) -> bool:
    return said.get("config.loss", "").lower().startswith("chunkedlosswrapper")


def _loss_notes(said: Arguments) -> tuple[str, ...]:
    chunks = said.get("config.num-chunks", "8")
    if not _has_loss_in_parts(said) or chunks == "8":
        return ()
    return (f"not counted: the loss in {chunks[:12]} parts, which takes less memory",)


def _stage(said: Arguments, pp: int) -> int:
    kept = said.get(f"{_P}fsdp-reshard-after-forward", "default").lower()
    # By default parameters stay gathered under a pipeline.
    return {"always": 3, "never": 2}.get(kept, 2 if pp > 1 else 3)


def _recompute(said: Arguments) -> Recompute:
    mode = said.get("activation-checkpoint.mode", "selective").lower()
    return next(
        (kind for kind in (Recompute.FULL, Recompute.SELECTIVE) if kind.value in mode),
        Recompute.NONE,
    )


def _pipelined(said: Arguments, grid: Grid, *, model: Model, batch: int) -> Grid:
    """The grid with its schedule, and the layers of each chunk as torchtitan cuts a model."""
    name = said.get(f"{_P}pipeline-parallel-schedule", "Interleaved1F1B").lower()
    layers = num_layers(model)
    listed = re.findall(r"\[[^\[\]]*\]", said.get(f"{_P}module-fqns-per-model-part", ""))
    if listed:
        chunks = tuple(len(re.findall(r"layers\.\d+", part)) for part in listed)
    else:
        first, last = (
            count(said, f"{_P}pipeline-parallel-{end}-stage-less-layers", 1)
            for end in ("first", "last")
        )
        each = count(said, f"{_P}pipeline-parallel-layers-per-stage")
        stages = (
            -(-(layers + first + last) // each) if each else grid.pp * (1 if name in _SINGLE else 2)
        )
        size, more = divmod(layers + first + last, stages)
        sizes = [size + (place < more) for place in range(stages)]
        chunks = (sizes[0] - first, *sizes[1:-1], sizes[-1] - last)
    if sum(chunks) != layers or len(chunks) % grid.pp:
        raise DataError(
            f"stages of {', '.join(map(str, chunks))[:60]} layers, MODEL has {layers} for pp"
            f" {grid.pp}",
            hint="the MODEL of the launch",
        )
    cut = replace(grid, vpp=len(chunks) // grid.pp, layers=chunks)
    if ORDER in said:
        return _of_table(said[ORDER], cut, model=model, batch=batch)
    if name not in _NAMES:
        raise DataError(
            f"the schedule {name[:40]} is not known here",
            hint=f"{', '.join(SCHEDULES.values())}; or with its table",
        )
    return replace(cut, schedule=_NAMES[name])


def _of_table(rows: str, grid: Grid, *, model: Model, batch: int) -> Grid:
    """The grid under the schedule whose table it is.

    Raises:
        DataError: it is of none that has a name.
    """
    for name in GRID_SCHEDULES:
        try:
            found = replace(grid, schedule=name)
            plan = plan_of(found, model=model, global_batch=batch)
            if (
                isinstance(plan.orders[0], NamedOrder)
                and schedule_csv(plan).split() == rows.split()
            ):
                return found
        except (ShardwrightError, AssertionError, ValueError):
            continue
    raise DataError(
        "the table of the pipeline's order is of no schedule that has a name here",
        hint="shardwright catalog schedules",
    )
