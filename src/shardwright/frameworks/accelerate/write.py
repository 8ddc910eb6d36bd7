"""Hugging Face Accelerate: the file of ``accelerate launch``, for FSDP2, plain replicas or, where
heads are traded, DeepSpeed.

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
from shardwright.frameworks.export.common_shortfalls import (
    another_framework,
    core_recomputed,
    in_no_target,
    not_split_beside_tp,
    of_the_job,
    of_the_program,
    other_orders,
    some_recomputed,
)
from shardwright.frameworks.export.exporter import Exporter, ExportFile, Given, Shortfall, title
from shardwright.frameworks.export.nested_settings import nested
from shardwright.frameworks.export.nodes_of_plan import nodes_of, unlike_nodes
from shardwright.frameworks.export.start_script import MASTER, NODE, PORT, start_script
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.pytorch_fsdp.write import fsdp2_degrees, fsdp2_shortfalls
from shardwright.frameworks.settings.setting_table import written_settings
from shardwright.runtime.runtime import ElementKernels
from shardwright.runtime.runtime_options import runtime_with_options
from shardwright.strategy.grid.grid import Grid, Recompute

FILE, SCRIPT = "accelerate.yaml", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp", "pp")
"""Axes of its mesh (`ParallelismConfig._get_mesh`)."""


def _shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a plan that Accelerate cannot express, each with the reason."""
    yield from of_the_job(given, Dtype.BF16, Dtype.FP16)
    yield from of_the_program(given)
    yield from unlike_nodes(given)
    grid = given.grid
    if grid.ep * grid.etp > 1:
        yield Shortfall(
            what=f"ep {grid.ep} etp {grid.etp}: its file has no degree of experts",
            hint="ep 1, or --to deepspeed",
        )
    if _trades_heads(grid):
        yield from write.grid_shortfalls(grid)
        yield from another_framework(given, "DeepSpeed")
    else:
        yield from _of_fsdp2(grid)
        yield from another_framework(given, "Accelerate")


def _files(given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan of which nothing, or only what may be lost, is lacking."""
    text = yaml_text(nested(written_settings(SETTINGS, _values(given))), comments=_comments(given))
    return (ExportFile(name=FILE, text=text), *_of_deepspeed(given), _script(given))


ACCELERATE: Final = Exporter(
    name="accelerate",
    version=SETTINGS.version,
    summary="the file of accelerate launch: FSDP2, or DeepSpeed where heads are traded",
    shortfalls=_shortfalls,
    files=_files,
)


def _trades_heads(grid: Grid) -> bool:
    return grid.ulysses > 1


def _of_fsdp2(grid: Grid) -> Iterator[Shortfall]:
    if grid.pp > 1:
        yield Shortfall(
            what=f"pp {grid.pp}: it has no pipelines but Megatron-LM's",
            hint="pp 1, or --to megatron",
        )
    yield from other_orders(grid, INNERMOST_FIRST)
    yield from not_split_beside_tp(grid)
    yield from fsdp2_shortfalls(grid)
    replicate, shard = fsdp2_degrees(grid)
    if replicate > 1 and shard == 1 and grid.tp * grid.cp > 1:
        yield Shortfall(
            what=f"{replicate} whole replicas beside tp {grid.tp} and cp {grid.cp}",
            hint="zero 2 or 3, with more shards than cp",
        )
    if grid.offload and not _sharded(grid):
        yield Shortfall(
            what=f"{grid.offload} % of the states on the host without shards", hint="zero 2 or 3"
        )
    elif grid.offload:
        yield Shortfall(
            what=f"{grid.offload} % of the states on the host",
            instead="parameters, gradients and all states on the host",
        )
    if not _sharded(grid) and grid.recompute is not Recompute.NONE:
        yield Shortfall(
            what="recompute without shards",
            instead="what the program recomputes: its file has that for FSDP alone",
        )
    yield from core_recomputed(grid)
    yield from some_recomputed(grid)
    yield from in_no_target(grid)


def _sharded(grid: Grid) -> bool:
    """FSDP2 runs: its mesh has a degree to shard over."""
    return fsdp2_degrees(grid)[1] * grid.cp > 1


def _values(given: Given) -> dict[str, Any]:
    """The values of the table's fields."""
    grid, job = given.grid, given.problem.job
    nodes, _ = nodes_of(given)
    sharded = _sharded(grid)
    found: dict[str, Any] = {
        "environment": "LOCAL_MACHINE",
        "nodes": nodes,
        "devices": grid.devices,
        "machine_rank": 0,
        # c10d would number nodes by their names.
        "rendezvous": "static",
    }
    if _trades_heads(grid):
        # Beside a file of DeepSpeed's, which has the number format, it refuses to be told.
        return found | {
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
    found |= {
        "kind": "FSDP" if sharded else "MULTI_GPU",
        "precision": "fp16" if job.compute is Dtype.FP16 else "bf16",
    }
    if sharded:
        found |= {
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
        found |= {"replicate": replicate, "shards": shards, "tp": grid.tp, "cp": grid.cp}
    if (sharded or grid.tp > 1) and grid.cp > 1:
        found |= {"cp_backend": "torch", "gather": grid.gather}
    if (
        runtime_with_options(given.problem.runtime, grid.options).element_kernels
        is ElementKernels.COMPILED
    ):
        found |= {"is_compiled": True, "compiles_each_layer": True}
    return found


def _of_deepspeed(given: Given) -> tuple[ExportFile, ...]:
    if not _trades_heads(given.grid):
        return ()
    # It makes DeepSpeed's groups of a sequence itself, from its own file.
    own = {
        key: value
        for key, value in write.configuration(given).items()
        if key not in ("sequence_parallel_size", "data_parallel_size")
    }
    return (ExportFile(name=write.CONFIG, text=json.dumps(own, indent=2) + "\n"),)


def _comments(given: Given) -> Iterator[str]:
    grid, job = given.grid, given.problem.job
    steps = job.global_batch // (grid.dp * grid.microbatch)
    yield f"{title(given)}. Made by Shardwright for Accelerate {SETTINGS.version}."
    yield f"{SCRIPT} PROGRAM starts a training program with it."
    yield (
        f"The program takes samples of {job.sequence_length} tokens, {grid.microbatch} at once on a"
        " replica,"
    )
    yield (
        f"and gradient_accumulation_steps={steps} of them a step; AdamW and its learning rate are"
        " its own."
    )
    if _trades_heads(grid) and grid.recompute is not Recompute.NONE:
        yield "It recomputes every layer: model.gradient_checkpointing_enable()."
    if grid.tp > 1:
        yield (
            "It loads a model that is split over tensor parallelism: from_pretrained(..,"
            ' tp_plan="auto", device_mesh=..).'
        )


def _script(given: Given) -> ExportFile:
    node = (
        f'${{{NODE}:+--machine_rank "${NODE}" --main_process_ip "${{{MASTER}:?}}"'
        f' --main_process_port "${{{PORT}:?}}"}}'
    )
    return start_script(
        given,
        name=SCRIPT,
        made_for=f"Accelerate {SETTINGS.version}",
        before=("# The first argument is the training program.",),
        runs=("accelerate", "launch", "--config_file", f'"$(dirname "$0")/{FILE}"', node),
    )
