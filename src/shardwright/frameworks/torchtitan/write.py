"""Exporter of a torchtitan configuration as a Python module, and a pipeline order table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
    in_quotes,
    one_line,
    title,
)
from shardwright.frameworks.export.match_target_model_by_blocks import (
    hyperparameter_shortfalls,
    published_name,
)
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.frameworks.export.unsupported_plan_features import (
    job_shortfalls,
    other_framework_shortfalls,
    partial_recompute_shortfalls,
    rank_order_shortfalls,
    universal_shortfalls,
)
from shardwright.frameworks.pytorch_fsdp.fsdp2_degrees_and_shortfalls_of_grid import (
    fsdp2_degrees,
    fsdp2_shortfalls,
    sharding_ranks,
)
from shardwright.frameworks.settings.setting_table import in_section, written_settings
from shardwright.frameworks.torchtitan.settings import FLAVORS, SCHEDULES, SETTINGS
from shardwright.model.ir.model_graph import Model
from shardwright.program.orders.write_pytorch_schedule_csv import schedule_csv
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    ElementKernels,
    LinearLoss,
    TpOverlap,
)
from shardwright.runtime.list_and_set_runtime_options import runtime_with_options
from shardwright.strategy.grid.chunk_placement_by_schedule import WAVE, grid_schedule
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

MODULE, FUNCTION, ORDER, SCRIPT = "shardwright_plan", "plan", "order.csv", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "ep", "dp", "pp")
"""Axes of torchtitan's mesh (`ParallelDims.build_mesh`)."""
LOOP, AS_A_V = "PipelineScheduleMulti", "ZBVZeroBubble"
"""Schedule names for an order table: stages in a loop, or in a V
(`_get_pp_rank_to_stage_indices_mapping`)."""


def flavor(model: Model) -> tuple[str, str] | None:
    """torchtitan's (module, flavor) of a model with the same blocks; None if it has none."""
    return published_name(model, FLAVORS)


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that torchtitan cannot express, each with a substitute or a hint."""
    yield from _job_shortfalls(export)
    yield from _grid_shortfalls(export.grid)
    yield from _option_shortfalls(export)


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """Python module with the configuration, order table where needed, and start script."""
    order = (
        (ExportFile(name=ORDER, text=schedule_csv(export.plan)),)
        if _is_written_as_order_table(export)
        else ()
    )
    return (ExportFile(name=f"{MODULE}.py", text=_module_text(export)), *order, _script(export))


TORCHTITAN: Final = Exporter(
    name="torchtitan",
    version=SETTINGS.version,
    summary="a Python module with its configuration, and the order of the pipeline as a table",
    shortfalls=_shortfalls,
    files=_files,
)


def _job_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Shortfalls of the model and the job."""
    problem = export.problem
    if flavor(problem.model) is None:
        modules = ", ".join(sorted({module for module, _ in FLAVORS.values()}))
        yield Shortfall(
            what=f"{problem.model.name}: its registries ({modules}) have no model of these sizes",
            hint="a published size",
        )
    yield from hyperparameter_shortfalls(problem.model, FLAVORS)
    yield from job_shortfalls(export, Dtype.BF16)


def _grid_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Parts of a grid that torchtitan cannot express."""
    yield from rank_order_shortfalls(grid, INNERMOST_FIRST)
    yield from fsdp2_shortfalls(grid)
    if grid.ulysses > 1:
        yield Shortfall(
            what=f"ulysses {grid.ulysses}: its context parallelism trades no heads",
            hint="a ring: ulysses 1",
        )
    if grid.ring > 1 and not grid.gather:
        yield Shortfall(
            what=f"a ring of {grid.ring}",
            instead="keys and values that are gathered, as PyTorch does by default",
        )
    if grid.etp > 1:
        yield Shortfall(what=f"etp {grid.etp}: its experts are not cut", hint="etp 1")
    if grid.ep > 1 and grid.order.index("ep") > grid.order.index("pp"):
        yield Shortfall(what="experts outside the stages", hint="ep inside pp")
    if (
        grid.ep > 1
        and (grid.zero == 0 or (grid.shard or grid.dp * grid.cp) < grid.dp * grid.cp)
        and grid.tp * sharding_ranks(grid) % grid.ep
    ):
        yield Shortfall(
            what=f"ep {grid.ep} over more than the {sharding_ranks(grid)} shards x tp {grid.tp}",
            hint="more shards, or zero 2 or 3",
        )
    placed = grid_schedule(grid.schedule)
    if grid.pp > 1 and placed.lanes > 1:
        yield Shortfall(what=f"{grid.schedule}: two lanes", hint="dualpipe-v or zb-v")
    elif grid.pp > 1 and placed.placement == WAVE and grid.vpp != 2:
        yield Shortfall(what=f"waves of {grid.vpp} chunks a rank", hint="zb-v, with two")
    if grid.recompute is Recompute.SELECTIVE:
        yield Shortfall(
            what="recompute of attention's core",
            instead="its selective policy, which keeps products and recomputes the rest",
        )
    yield from partial_recompute_shortfalls(grid)
    if grid.offload:
        yield Shortfall(what=f"{grid.offload} % of the states on the host", hint="offload=0")
    yield from universal_shortfalls(grid)


def _option_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Shortfalls of runtime options, and of a plan priced for another framework."""
    for option, value in export.grid.options:
        if option != "tp_overlap":
            yield Shortfall(
                what=f"the option {option}={value}", instead=f"torchtitan's own {option}"
            )
    yield from other_framework_shortfalls(export, "torchtitan")


def _is_written_as_order_table(export: PlanToExport) -> bool:
    """True if the pipeline order is written as a table: torchtitan has no such schedule."""
    return export.grid.pp > 1 and (
        export.table is not None or export.grid.schedule not in SCHEDULES
    )


def _has_v_placement(export: PlanToExport) -> bool:
    """True if the stages lie on the ranks in a V: first and last stage on rank 0."""
    bases = [stage.base for stage in export.plan.lanes[0].stages]
    return len(bases) == 2 * export.grid.pp and bases == [
        *bases[: export.grid.pp],
        *reversed(bases[: export.grid.pp]),
    ]


def _modules_of_chunks(export: PlanToExport) -> list[list[str]]:
    """Names of torchtitan's modules by pipeline chunk: embedding, ``layers.0`` ..., norm, head."""
    chunks, at = [], 0
    for layers in export.chunks:
        chunks.append([f"layers.{i}" for i in range(at, at + layers)])
        at += layers
    chunks[0].insert(0, "tok_embeddings")
    chunks[-1] += ["norm", "lm_head"]
    return chunks


def _field_values(export: PlanToExport) -> dict[str, Any]:
    """Field of the settings table -> value for the plan; pipeline fields only if pp is above 1."""
    grid, batch = export.grid, export.problem.job.global_batch
    replicate, shards = fsdp2_degrees(grid)
    values: dict[str, Any] = {
        "replicate": replicate,
        "shards": shards,
        "sharded_stage": 3 if grid.zero == 3 else 2,
        "tp": grid.tp,
        "sp": grid.sp,
        "cp": grid.cp,
        "ep": grid.ep,
        "seq_len": export.problem.job.sequence_length,
        "global_batch": batch,
        "local_batch": batch // grid.dp if grid.pp > 1 else grid.microbatch,
    }
    if grid.pp == 1:
        return values
    # 1F1B of one microbatch is GPipe's order, which PyTorch's 1F1B refuses.
    is_one_microbatch = batch == grid.dp * grid.microbatch and grid.schedule == "1f1b"
    named = SCHEDULES.get("gpipe" if is_one_microbatch else grid.schedule)
    return values | {
        "pp": grid.pp,
        "order_name": (AS_A_V if _has_v_placement(export) else LOOP)
        if _is_written_as_order_table(export)
        else named,
        "pipeline_samples": grid.microbatch,
        "modules": _modules_of_chunks(export),
    }


def _section_lines(export: PlanToExport, section: str) -> list[str]:
    """Lines of Python source, ``name=value,``, for the plan's settings in a section."""
    pairs = in_section(written_settings(SETTINGS, _field_values(export)), section)
    return [
        f"            {name.rpartition('.')[2]}={_python_text(value)}," for name, value in pairs
    ]


def _module_text(export: PlanToExport) -> str:
    """Text of the Python module that defines the plan's configuration."""
    grid = export.grid
    registry_entry = flavor(export.problem.model)
    assert registry_entry is not None, "a model without a flavor is refused"
    module, name = registry_entry
    runtime = export.problem.runtime
    compiled = (
        runtime.element_kernels is ElementKernels.COMPILED or runtime.framework != "torchtitan"
    )
    overlapped = runtime_with_options(runtime, grid.options).tp_overlap is TpOverlap.ASYNC
    loss = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model))"
    if runtime_with_options(runtime, grid.options).linear_loss is LinearLoss.PARTS:
        loss = f"ChunkedLossWrapper.Config(loss_fn={loss})"
    fields = _section_lines(export, "parallelism")
    if _is_written_as_order_table(export):
        fields.append(
            f"            pipeline_parallel_schedule_csv=str(Path(__file__).with_name({ORDER!r})),"
        )
    recompute = {
        Recompute.NONE: "None",
        Recompute.SELECTIVE: "SelectiveAC.Config()",
        Recompute.FULL: "FullAC.Config()",
    }[grid.recompute]
    lines = [
        f'"""{in_quotes(title(export))}. Made by Shardwright for torchtitan {SETTINGS.version}.',
        "",
        (
            f"{SCRIPT} starts it. The tokenizer, the data and the learning rate are no part of a"
            " plan: set them."
        ),
        '"""',
        "",
        *(["from pathlib import Path", ""] if _is_written_as_order_table(export) else []),
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss  # noqa: F401",
        "from torchtitan.components.optimizer import default_adamw",
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        (
            "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa:"
            " F401"
        ),
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
        "from torchtitan.models.common.config_utils import decoder_vocab_size",
        f"from torchtitan.models.{module} import model_registry",
        "from torchtitan.trainer import Trainer",
        "",
        "",
        f"def {FUNCTION}() -> Trainer.Config:",
        f'    """{in_quotes(one_line(export.name))}."""',
        f"    model = model_registry({_python_text(name)})",
        "    return Trainer.Config(",
        "        model_spec=model,",
        f"        loss={loss},",
        "        optimizer=default_adamw(),",
        '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),',
        "        training=TrainingConfig(",
        *_section_lines(export, "training"),
        *(["            disable_cuda_graphs=True,"] if grid.pp > 1 or grid.ep > 1 else []),
        "        ),",
        "        parallelism=ParallelismConfig(",
        *fields,
        "        ),",
        f"        activation_checkpoint={recompute},",
        (
            f"        compile=CompileConfig(enable={compiled},"
            f" enable_async_tensor_parallel={compiled and overlapped}),"
        ),
        "    )",
        "",
    ]
    return "\n".join(lines)


def _script(export: PlanToExport) -> ExportFile:
    """Start script of one node, which calls torchrun."""
    return start_script(
        export,
        name=SCRIPT,
        made_for=f"torchtitan {SETTINGS.version}",
        before=(
            'export PYTHONPATH="$(cd -- "$(dirname -- "$0")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"',
        ),
        runs=torchrun("-m", "torchtitan.train", "--module", MODULE, "--config", FUNCTION),
    )


def _python_text(value: object) -> str:
    """Value as Python source text, strings in double quotes."""
    return repr(value).replace("'", '"')
