"""Exporter of DeepSpeed's JSON configuration and a start script.

Source of groups: DeepSpeed, utils/groups.py; of settings, see `settings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from shardwright.dtype import Dtype
from shardwright.frameworks.deepspeed.settings import AXES, DATA_FIRST, SETTINGS
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
    one_line,
)
from shardwright.frameworks.export.nest_dotted_settings import (
    Settings,
    nested_sections,
    settings_of_flag,
)
from shardwright.frameworks.export.plan_runtime_options_as_flags import option_flags_of_plan
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.frameworks.export.unsupported_plan_features import (
    OF_THE_PROGRAM,
    job_shortfalls,
    other_framework_shortfalls,
    partial_recompute_shortfalls,
    program_option_shortfalls,
    rank_order_shortfalls,
    selective_recompute_shortfalls,
    sequence_parallel_shortfalls,
    single_replica_shortfalls,
    universal_shortfalls,
)
from shardwright.frameworks.settings.setting_table import Pair, grid_values, written_settings
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ElementKernels
from shardwright.runtime.list_and_set_runtime_options import runtime_with_options
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

CONFIG, SCRIPT = "ds_config.json", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp")
PRESETS: Final[Mapping[str, str]] = {
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
"""Models whose experts it deals over devices (AutoEP): architecture -> `preset_model`."""


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that DeepSpeed cannot express, each with a substitute or a hint."""
    yield from job_shortfalls(export, Dtype.BF16, Dtype.FP16)
    yield from program_option_shortfalls(export)
    yield from grid_shortfalls(export.grid)
    yield from _expert_shortfalls(export)
    yield from other_framework_shortfalls(export, "DeepSpeed")


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """DeepSpeed's configuration and the start script of a plan."""
    config = json.dumps(configuration(export), indent=2) + "\n"
    return ExportFile(name=CONFIG, text=config), _script(export)


DEEPSPEED: Final = Exporter(
    name="deepspeed",
    version=SETTINGS.version,
    summary="its configuration, and a script that starts a program with it",
    shortfalls=_shortfalls,
    files=_files,
)


def grid_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Parts of a grid that DeepSpeed's configuration cannot express, apart from experts."""
    if grid.pp > 1:
        yield Shortfall(
            what=f"pp {grid.pp}: its pipelines are programs (PipelineModule), not configuration",
            hint="pp 1",
        )
    yield from rank_order_shortfalls(grid, (*INNERMOST_FIRST, "pp"))
    yield from sequence_parallel_shortfalls(grid)
    yield from single_replica_shortfalls(grid)
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
    yield from selective_recompute_shortfalls(grid)
    yield from partial_recompute_shortfalls(grid)
    yield from universal_shortfalls(grid)


def _expert_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan's expert parallelism that DeepSpeed cannot express."""
    grid, model = export.grid, export.problem.model
    if grid.etp > 1:
        yield Shortfall(what=f"etp {grid.etp}: its experts are not cut", hint="etp 1")
    if grid.ep == 1:
        return
    if model.architecture not in PRESETS:
        presets = ", ".join(PRESETS.values())
        yield Shortfall(
            what=f"ep {grid.ep} of {model.name}: it deals experts of {presets}",
            hint="ep 1, or such a model",
        )
    if grid.cp > 1 and grid.zero == 3:
        yield Shortfall(what="ep beside cp with zero3", hint="zero 2")
    if grid.tp > 1 and grid.offload:
        yield Shortfall(what="ep beside tp with states on the host", hint="offload=0")
    if grid.tp * grid.cp > 1 and _has_data_before_experts(grid):
        yield Shortfall(
            what="experts dealt outside replicas beside tp or cp",
            hint="ep inside dp in the order of ranks",
        )


def _has_data_before_experts(grid: Grid) -> bool:
    """True if ranks are numbered along dp before ep: the copies of an expert lie side by side.

    The ranks that share a layer's experts then stand apart.
    """
    return grid.ep > 1 and grid.edp > 1 and grid.order.index("dp") < grid.order.index("ep")


def configuration(export: PlanToExport) -> Settings:
    """DeepSpeed's configuration (ds_config) of a plan, as nested settings."""
    grid, batch = export.grid, export.problem.job.global_batch
    half = "fp16" if export.problem.job.compute is Dtype.FP16 else "bf16"
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
        "order": DATA_FIRST if _has_data_before_experts(grid) else AXES,
    }
    if grid.ep > 1:
        values |= {"has_ep": True, "preset": PRESETS[export.problem.model.architecture]}
    if grid.recompute is not Recompute.NONE:
        values |= {"partition_activations": False, "cpu_checkpointing": False}
    values |= dict(_bucket_sizes(export))
    return nested_sections([*written_settings(SETTINGS, values), *_option_settings(export)])


def _bucket_sizes(export: PlanToExport) -> Iterator[Pair]:
    """Yield (field, gradient dtype or bucket elements) of a plan priced for DeepSpeed with ZeRO.

    Without ZeRO, DeepSpeed accumulates gradients in the parameters' format and accepts no other.
    """
    grid, runtime = export.grid, export.problem.runtime
    if not grid.zero or runtime.framework != "DeepSpeed":
        return
    yield "gradient_dtype", str(runtime.gradient_dtype)
    # Sizes of buckets are elements of two bytes.
    yield "reduce_bucket_size", runtime.bucket_bytes // 2
    yield "allgather_bucket_size", runtime.bucket_bytes // 2
    if grid.zero == 3:
        yield "stage3_prefetch_bucket_size", runtime.gather_bucket_bytes // 2
        yield "stage3_max_reuse_distance", runtime.reuse_elements


def _option_settings(export: PlanToExport) -> Iterator[Pair]:
    """Yield (dotted name, value) of plan options that DeepSpeed's configuration can express."""
    # That a compiler fuses kernels is no setting of this version, but a call of the program.
    idle = ("cpu_checkpoints",) if export.grid.recompute is Recompute.NONE else ()
    apart = ("kernels", *idle, *OF_THE_PROGRAM)
    for flag in option_flags_of_plan(export, "DeepSpeed", apart=apart):
        yield from settings_of_flag(flag)


def _program_instructions(export: PlanToExport) -> Iterator[str]:
    """Yield instructions for the training program, for plan parts that no setting expresses."""
    grid, model = export.grid, export.problem.model
    yield (
        f"builds {model.name}, reads samples of {export.problem.job.sequence_length} tokens, and"
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
    runtime = export.problem.runtime
    if (
        runtime.framework == "DeepSpeed"
        and runtime_with_options(runtime, grid.options).element_kernels is ElementKernels.COMPILED
    ):
        yield "compiles: engine.compile()"


def _script(export: PlanToExport) -> ExportFile:
    """Start script of one node, which calls torchrun."""
    return start_script(
        export,
        name=SCRIPT,
        made_for=f"DeepSpeed {SETTINGS.version}",
        before=[
            f"# {CONFIG} says batch, numbers, ZeRO and degrees. The program, the first argument,",
            *(f"# - {one_line(line)};" for line in _program_instructions(export)),
            "# - calls deepspeed.initialize with deepspeed.add_config_arguments.",
            'program="${1:?}"; shift',
        ],
        runs=torchrun(
            '"$program"', "--deepspeed", "--deepspeed_config", f'"$(dirname "$0")/{CONFIG}"'
        ),
    )
