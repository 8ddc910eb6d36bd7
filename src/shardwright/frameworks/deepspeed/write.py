"""DeepSpeed: its configuration, and a script that starts a training program with it.

Source of groups: DeepSpeed, utils/groups.py; of settings, see `settings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from shardwright.dtype import Dtype
from shardwright.frameworks.deepspeed.settings import AXES, DATA_FIRST, SETTINGS
from shardwright.frameworks.export.common_shortfalls import (
    OF_THE_PROGRAM,
    another_framework,
    core_recomputed,
    in_no_target,
    not_split_beside_tp,
    of_one_replica,
    of_the_job,
    of_the_program,
    other_orders,
    some_recomputed,
)
from shardwright.frameworks.export.exporter import Exporter, ExportFile, Given, Shortfall, one_line
from shardwright.frameworks.export.nested_settings import Settings, nested, settings_of
from shardwright.frameworks.export.option_flags import flags_set
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.frameworks.settings.setting_table import Pair, grid_values, written_settings
from shardwright.runtime.runtime import ElementKernels
from shardwright.runtime.runtime_options import runtime_with_options
from shardwright.strategy.grid.grid import Grid, Recompute

CONFIG, SCRIPT = "ds_config.json", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp")
PRESETS: Final[Mapping[str, str]] = {
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
"""Models whose experts it deals over devices (AutoEP): architecture -> `preset_model`."""


def _shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a plan that DeepSpeed cannot express, each with the reason."""
    yield from of_the_job(given, Dtype.BF16, Dtype.FP16)
    yield from of_the_program(given)
    yield from grid_shortfalls(given.grid)
    yield from _of_experts(given)
    yield from another_framework(given, "DeepSpeed")


def _files(given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan of which nothing, or only what may be lost, is lacking."""
    config = json.dumps(configuration(given), indent=2) + "\n"
    return ExportFile(name=CONFIG, text=config), _script(given)


DEEPSPEED: Final = Exporter(
    name="deepspeed",
    version=SETTINGS.version,
    summary="its configuration, and a script that starts a program with it",
    shortfalls=_shortfalls,
    files=_files,
)


def grid_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """The parts of a grid that DeepSpeed's configuration cannot express, apart from experts."""
    if grid.pp > 1:
        yield Shortfall(
            what=f"pp {grid.pp}: its pipelines are programs (PipelineModule), not configuration",
            hint="pp 1",
        )
    yield from other_orders(grid, (*INNERMOST_FIRST, "pp"))
    yield from not_split_beside_tp(grid)
    yield from of_one_replica(grid)
    if grid.ring > 1:
        yield Shortfall(
            what=f"a ring of {grid.ring}: its sequence parallelism trades heads",
            hint=f"ulysses {grid.cp}",
        )
    if grid.cp > 1 and grid.tp > 1:
        yield Shortfall(
            what=f"cp {grid.cp} beside tp {grid.tp}: its mesh has one of them", hint="tp 1 or cp 1"
        )
    if grid.zero and grid.shard and grid.shard < grid.dp * grid.cp:
        what = (
            f"zero{grid.zero} in groups of {grid.shard}: MiCS was removed, and"
            " zero_hpz_partition_size shards gathered parameters alone"
        )
        yield Shortfall(what=what, hint="shards over all replicas")
    if grid.offload and not grid.zero:
        yield Shortfall(what="states on the host without ZeRO", hint="zero 1, 2 or 3")
    elif grid.offload not in (0, 100) and grid.zero < 3:
        yield Shortfall(
            what=f"{grid.offload} % of the states on the host with zero{grid.zero}",
            hint="all of them, or zero3",
        )
    yield from core_recomputed(grid)
    yield from some_recomputed(grid)
    yield from in_no_target(grid)


def _of_experts(given: Given) -> Iterator[Shortfall]:
    grid, model = given.grid, given.problem.model
    if grid.etp > 1:
        yield Shortfall(what=f"etp {grid.etp}: its experts are not cut", hint="etp 1")
    if grid.ep == 1:
        return
    if model.architecture not in PRESETS:
        known = ", ".join(PRESETS.values())
        yield Shortfall(
            what=f"ep {grid.ep} of {model.name}: it deals experts of {known}",
            hint="ep 1, or such a model",
        )
    if grid.cp > 1 and grid.zero == 3:
        yield Shortfall(what="ep beside cp with zero3", hint="zero 2")
    if grid.tp > 1 and grid.offload:
        yield Shortfall(what="ep beside tp with states on the host", hint="offload=0")
    if grid.tp * grid.cp > 1 and _data_first(grid):
        yield Shortfall(
            what="experts dealt outside replicas beside tp or cp",
            hint="ep inside dp in the order of ranks",
        )


def _data_first(grid: Grid) -> bool:
    """Copies of an expert are neighbours, and the members that share its layer's experts stand
    apart.
    """
    return grid.ep > 1 and grid.edp > 1 and grid.order.index("dp") < grid.order.index("ep")


def configuration(given: Given) -> Settings:
    """The configuration of a plan of which nothing is lacking."""
    grid, batch = given.grid, given.problem.job.global_batch
    half = "fp16" if given.problem.job.compute is Dtype.FP16 else "bf16"
    values = {
        **grid_values(grid),
        # With tensor parallelism its check of the batch counts every rank as a replica: it is given
        # what it does not check.
        "global_batch": batch if grid.tp == 1 else None,
        "microbatches": batch // (grid.dp * grid.microbatch),
        half: True,
        "is_offloaded": grid.offload > 0,
        "offload_ratio": grid.offload if grid.offload else None,
        "replicas": grid.dp if grid.cp > 1 else None,
        "order": DATA_FIRST if _data_first(grid) else AXES,
    }
    if grid.ep > 1:
        values |= {"has_ep": True, "preset": PRESETS[given.problem.model.architecture]}
    if grid.recompute is not Recompute.NONE:
        values |= {"partition_activations": False, "cpu_checkpointing": False}
    values |= dict(_sizes(given))
    return nested([*written_settings(SETTINGS, values), *_options(given)])


def _sizes(given: Given) -> Iterator[Pair]:
    """The format of added gradients and sizes of buckets, as the plan was priced. Without ZeRO it
    adds gradients up in the parameters' format and takes no other.
    """
    grid, runtime = given.grid, given.problem.runtime
    if not grid.zero or runtime.framework != "DeepSpeed":
        return
    yield "gradient_dtype", str(runtime.gradient_dtype)
    # Sizes of buckets are elements of two bytes.
    yield "reduce_bucket_size", runtime.bucket_bytes // 2
    yield "allgather_bucket_size", runtime.bucket_bytes // 2
    if grid.zero == 3:
        yield "stage3_prefetch_bucket_size", runtime.gather_bucket_bytes // 2
        yield "stage3_max_reuse_distance", runtime.reuse_elements


def _options(given: Given) -> Iterator[Pair]:
    # That a compiler fuses kernels is no setting of this version, but a call of the program.
    idle = ("cpu_checkpoints",) if given.grid.recompute is Recompute.NONE else ()
    apart = ("kernels", *idle, *OF_THE_PROGRAM)
    for flag in flags_set(given, "DeepSpeed", apart=apart):
        yield from settings_of(flag)


def _program(given: Given) -> Iterator[str]:
    """Instructions for the training program, which no setting of the configuration expresses."""
    grid, model = given.grid, given.problem.model
    yield (
        f"builds {model.name}, reads samples of {given.problem.job.sequence_length} tokens, and"
        " makes AdamW with its learning rate"
    )
    if grid.recompute is not Recompute.NONE:
        yield (
            "recomputes every layer: model.gradient_checkpointing_enable(), or"
            " deepspeed.checkpointing.checkpoint"
        )
    if grid.cp > 1:
        yield (
            "trades heads round attention: deepspeed.sequence.layer.DistributedAttention, or"
            " UlyssesSPAttentionHF"
        )
    runtime = given.problem.runtime
    if (
        runtime.framework == "DeepSpeed"
        and runtime_with_options(runtime, grid.options).element_kernels is ElementKernels.COMPILED
    ):
        yield "compiles: engine.compile()"


def _script(given: Given) -> ExportFile:
    return start_script(
        given,
        name=SCRIPT,
        made_for=f"DeepSpeed {SETTINGS.version}",
        before=[
            f"# {CONFIG} says batch, numbers, ZeRO and degrees. The program, the first argument,",
            *(f"# - {one_line(line)};" for line in _program(given)),
            "# - calls deepspeed.initialize with deepspeed.add_config_arguments.",
            'program="${1:?}"; shift',
        ],
        runs=torchrun(
            '"$program"', "--deepspeed", "--deepspeed_config", f'"$(dirname "$0")/{CONFIG}"'
        ),
    )
