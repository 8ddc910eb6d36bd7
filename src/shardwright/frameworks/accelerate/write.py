"""Exporter of Accelerate's YAML for ``accelerate launch``: FSDP2, replicas or DeepSpeed.

DeepSpeed is used for Ulysses.

Source of sequence parallelism: Accelerate, accelerator.py (`_prepare_deepspeed`); of settings, see
`settings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.accelerate.settings import SETTINGS
from shardwright.frameworks.deepspeed import write
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
    title,
)
from shardwright.frameworks.export.nest_dotted_settings import nested_sections
from shardwright.frameworks.export.node_counts import node_and_rank_counts, unequal_node_shortfalls
from shardwright.frameworks.export.start_script import MASTER, NODE, PORT, start_script
from shardwright.frameworks.export.unsupported_plan_features import (
    job_shortfalls,
    other_framework_shortfalls,
    partial_recompute_shortfalls,
    program_option_shortfalls,
    rank_order_shortfalls,
    selective_recompute_shortfalls,
    sequence_parallel_shortfalls,
    universal_shortfalls,
)
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.pytorch_fsdp.fsdp2_degrees_and_shortfalls_of_grid import (
    fsdp2_degrees,
    fsdp2_shortfalls,
)
from shardwright.frameworks.settings.setting_table import written_settings
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ElementKernels
from shardwright.runtime.list_and_set_runtime_options import runtime_with_options
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

FILE, SCRIPT = "accelerate.yaml", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp", "pp")
"""Axes of its mesh (`ParallelismConfig._get_mesh`)."""


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that Accelerate cannot express, each with a substitute or a hint."""
    yield from job_shortfalls(export, Dtype.BF16, Dtype.FP16)
    yield from program_option_shortfalls(export)
    yield from unequal_node_shortfalls(export)
    grid = export.grid
    if grid.ep * grid.etp > 1:
        yield Shortfall(
            what=f"ep {grid.ep} etp {grid.etp}: its file has no degree of experts",
            hint="ep 1, or --to deepspeed",
        )
    if _uses_deepspeed(grid):
        yield from write.grid_shortfalls(grid)
        yield from other_framework_shortfalls(export, "DeepSpeed")
    else:
        yield from _fsdp2_shortfalls(grid)
        yield from other_framework_shortfalls(export, "Accelerate")


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """Files of a plan: Accelerate's YAML, DeepSpeed's file where it is used, and start script."""
    text = yaml_text(
        nested_sections(written_settings(SETTINGS, _field_values(export))),
        comments=_comments(export),
    )
    return (ExportFile(name=FILE, text=text), *_deepspeed_file(export), _script(export))


ACCELERATE: Final = Exporter(
    name="accelerate",
    version=SETTINGS.version,
    summary="the file of accelerate launch: FSDP2, or DeepSpeed where heads are traded",
    shortfalls=_shortfalls,
    files=_files,
)


def _uses_deepspeed(grid: Grid) -> bool:
    """True if the grid uses Ulysses, which needs DeepSpeed."""
    return grid.ulysses > 1


def _fsdp2_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Parts of a grid that Accelerate's FSDP2 cannot express."""
    if grid.pp > 1:
        yield Shortfall(
            what=f"pp {grid.pp}: it has no pipelines but Megatron-LM's",
            hint="pp 1, or --to megatron",
        )
    yield from rank_order_shortfalls(grid, INNERMOST_FIRST)
    yield from sequence_parallel_shortfalls(grid)
    yield from fsdp2_shortfalls(grid)
    replicate, shard = fsdp2_degrees(grid)
    if replicate > 1 and shard == 1 and grid.tp * grid.cp > 1:
        yield Shortfall(
            what=f"{replicate} whole replicas beside tp {grid.tp} and cp {grid.cp}",
            hint="zero 2 or 3, with more shards than cp",
        )
    if grid.offload and not _has_sharding(grid):
        yield Shortfall(
            what=f"{grid.offload} % of the states on the host without shards", hint="zero 2 or 3"
        )
    elif grid.offload:
        yield Shortfall(
            what=f"{grid.offload} % of the states on the host",
            instead="parameters, gradients and all states on the host",
        )
    if not _has_sharding(grid) and grid.recompute is not Recompute.NONE:
        yield Shortfall(
            what="recompute without shards",
            instead="what the program recomputes: its file has that for FSDP alone",
        )
    yield from selective_recompute_shortfalls(grid)
    yield from partial_recompute_shortfalls(grid)
    yield from universal_shortfalls(grid)


def _has_sharding(grid: Grid) -> bool:
    """True if the grid shards over more than one rank by FSDP2, those of cp included."""
    return fsdp2_degrees(grid)[1] * grid.cp > 1


def _field_values(export: PlanToExport) -> dict[str, Any]:
    """Field of the settings table -> value for the plan; fields not to be written are absent."""
    grid, job = export.grid, export.problem.job
    nodes, _ = node_and_rank_counts(export)
    sharded = _has_sharding(grid)
    values: dict[str, Any] = {
        "environment": "LOCAL_MACHINE",
        "nodes": nodes,
        "devices": grid.devices,
        "machine_rank": 0,
        # c10d would number nodes by their names.
        "rendezvous": "static",
    }
    if _uses_deepspeed(grid):
        # DeepSpeed's file has the number format: Accelerate rejects a second one beside it.
        return values | {
            "kind": "DEEPSPEED",
            "deepspeed_file": write.CONFIG,
            "launcher": "standard",
            "is_made_sharded": grid.zero == 3,
            "shards": grid.dp,
            "ulysses": grid.cp,
            "sp_backend": "deepspeed",
            "seq_len": job.sequence_length,
            "length_varies": False,
        }
    values |= {
        "kind": "FSDP" if sharded else "MULTI_GPU",
        "precision": "fp16" if job.compute is Dtype.FP16 else "bf16",
    }
    if sharded:
        values |= {
            "fsdp_version": 2,
            "reshards": grid.zero == 3,
            "wrap_policy": "TRANSFORMER_BASED_WRAP",
            "is_offloaded": grid.offload > 0,
            "is_recomputed": grid.recompute is not Recompute.NONE,
            "state_dict_type": "SHARDED_STATE_DICT",
            "loads_on_one_rank": False,
        }
    if sharded or grid.tp > 1:
        replicate, shards = fsdp2_degrees(grid)
        values |= {"replicate": replicate, "shards": shards, "tp": grid.tp, "cp": grid.cp}
    if (sharded or grid.tp > 1) and grid.cp > 1:
        values |= {"cp_backend": "torch", "gather": grid.gather}
    if (
        runtime_with_options(export.problem.runtime, grid.options).element_kernels
        is ElementKernels.COMPILED
    ):
        values |= {"is_compiled": True, "compiles_each_layer": True}
    return values


def _deepspeed_file(export: PlanToExport) -> tuple[ExportFile, ...]:
    """DeepSpeed's configuration file of a plan with Ulysses; empty for other plans."""
    if not _uses_deepspeed(export.grid):
        return ()
    # Accelerate makes DeepSpeed's sequence groups itself, from Accelerate's own file.
    configuration = {
        key: value
        for key, value in write.configuration(export).items()
        if key not in ("sequence_parallel_size", "data_parallel_size")
    }
    return (ExportFile(name=write.CONFIG, text=json.dumps(configuration, indent=2) + "\n"),)


def _comments(export: PlanToExport) -> Iterator[str]:
    """Comment lines above the settings in Accelerate's YAML."""
    grid, job = export.grid, export.problem.job
    steps = job.global_batch // (grid.dp * grid.microbatch)
    yield f"{title(export)}. Made by Shardwright for Accelerate {SETTINGS.version}."
    yield f"{SCRIPT} PROGRAM starts a training program with it."
    yield (
        f"The program takes samples of {job.sequence_length} tokens, {grid.microbatch} at once on a"
        " replica,"
    )
    yield (
        f"and gradient_accumulation_steps={steps} of them a step; AdamW and its learning rate are"
        " its own."
    )
    if _uses_deepspeed(grid) and grid.recompute is not Recompute.NONE:
        yield "It recomputes every layer: model.gradient_checkpointing_enable()."
    if grid.tp > 1:
        yield (
            "It loads a model that is split over tensor parallelism: from_pretrained(..,"
            ' tp_plan="auto", device_mesh=..).'
        )


def _script(export: PlanToExport) -> ExportFile:
    """Start script of one node, which calls ``accelerate launch``."""
    node = (
        f'${{{NODE}:+--machine_rank "${NODE}" --main_process_ip "${{{MASTER}:?}}"'
        f' --main_process_port "${{{PORT}:?}}"}}'
    )
    return start_script(
        export,
        name=SCRIPT,
        made_for=f"Accelerate {SETTINGS.version}",
        before=("# The first argument is the training program.",),
        runs=("accelerate", "launch", "--config_file", f'"$(dirname "$0")/{FILE}"', node),
    )
