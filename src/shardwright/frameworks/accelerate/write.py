"""Hugging Face Accelerate: the file of ``accelerate launch``, for FSDP2, plain replicas or, where
heads are traded, DeepSpeed.

Source of the fields: Accelerate 1.15.0, commands/config/config_args.py (`ClusterConfig`),
commands/launch.py and utils/launch.py, whose arguments the nested sections are, and
parallelism_config.py (`ParallelismConfig`); of sequence parallelism, accelerator.py
(`_prepare_deepspeed`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from shardwright.dtype import Dtype
from shardwright.frameworks.deepspeed import write as deepspeed
from shardwright.frameworks.export.common_shortfalls import (
    another_framework,
    core_recomputed,
    frozen_parameters,
    not_split_beside_tp,
    of_the_program,
    on_the_host,
    other_optimizers,
    other_orders,
    other_products,
    sliced,
    some_recomputed,
)
from shardwright.frameworks.export.exporter import ExportFile, Given, Shortfall, title
from shardwright.frameworks.export.nested_settings import Pair, nested
from shardwright.frameworks.export.nodes_of_plan import nodes_of, unlike_nodes
from shardwright.frameworks.export.start_script import MASTER, NODE, PORT, start_script
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.pytorch_fsdp.write import fsdp2_degrees, fsdp2_shortfalls
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.options import chosen
from shardwright.runtime.runtime import ElementKernels
from shardwright.strategy.grid.axes import Grid, Recompute

FILE, SCRIPT = "accelerate.yaml", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp", "pp")
"""Axes of its mesh (`ParallelismConfig._get_mesh`)."""
PREFIX: Final = "parallelism_config.parallelism_config_"


@dataclass(frozen=True, slots=True)
class Accelerate:
    """The exporter."""

    name: str = "accelerate"
    version: str = "1.15.0"
    summary: str = "the file of accelerate launch: FSDP2, or DeepSpeed where heads are traded"
    stages_differ: bool = False

    def shortfalls(self, given: Given) -> Iterator[Shortfall]:
        """See `Exporter`."""
        yield from other_optimizers(given)
        yield from of_the_program(given)
        yield from other_products(given, Dtype.BF16, Dtype.FP16)
        yield from frozen_parameters(given)
        yield from unlike_nodes(given)
        grid = given.grid
        if grid.ep * grid.etp > 1:
            yield Shortfall(
                what=f"ep {grid.ep} etp {grid.etp}: its file has no degree of experts",
                hint="ep 1, or --to deepspeed",
            )
        if _trades_heads(grid):
            yield from deepspeed.grid_shortfalls(grid)
            yield from another_framework(given, "DeepSpeed")
        else:
            yield from _of_fsdp2(grid)
            yield from another_framework(given, "Accelerate")

    def files(self, given: Given) -> tuple[ExportFile, ...]:
        """See `Exporter`."""
        text = yaml_text(nested(_settings(given)), comments=_comments(given))
        return (ExportFile(name=FILE, text=text), *_of_deepspeed(given), _script(given))


ACCELERATE: Final = Accelerate()


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
    yield from on_the_host(grid)
    yield from sliced(grid)


def _sharded(grid: Grid) -> bool:
    """FSDP2 runs: its mesh has a degree to shard over."""
    return fsdp2_degrees(grid)[1] * grid.cp > 1


def _settings(given: Given) -> Iterator[Pair]:
    grid, job = given.grid, given.problem.job
    nodes, _ = nodes_of(given)
    heads, sharded = _trades_heads(grid), _sharded(grid)
    yield "compute_environment", "LOCAL_MACHINE"
    yield "distributed_type", "DEEPSPEED" if heads else "FSDP" if sharded else "MULTI_GPU"
    # Beside a file of DeepSpeed's, which says it, it refuses to be told.
    if not heads:
        yield "mixed_precision", "fp16" if job.compute is Dtype.FP16 else "bf16"
    yield "num_machines", nodes
    yield "num_processes", grid.devices
    yield "machine_rank", 0
    # c10d would number nodes by their names.
    yield "rdzv_backend", "static"
    if heads:
        yield "deepspeed_config.deepspeed_config_file", deepspeed.CONFIG
        yield "deepspeed_config.deepspeed_multinode_launcher", "standard"
        yield "deepspeed_config.zero3_init_flag", grid.zero == 3
        yield f"{PREFIX}dp_shard_size", grid.dp
        yield f"{PREFIX}sp_size", grid.cp
        yield f"{PREFIX}sp_backend", "deepspeed"
        yield f"{PREFIX}sp_seq_length", job.sequence_length
        yield f"{PREFIX}sp_seq_length_is_variable", False
        return
    if sharded:
        yield from _fsdp(grid)
    if sharded or grid.tp > 1:
        yield from _degrees(grid)
    runtime = given.problem.runtime
    if chosen(runtime, grid.options).element_kernels is ElementKernels.COMPILED:
        yield "dynamo_config.dynamo_backend", "INDUCTOR"
        yield "dynamo_config.dynamo_use_regional_compilation", True


def _fsdp(grid: Grid) -> Iterator[Pair]:
    yield "fsdp_config.fsdp_version", 2
    yield "fsdp_config.fsdp_reshard_after_forward", grid.zero == 3
    yield "fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"
    yield "fsdp_config.fsdp_offload_params", grid.offload > 0
    yield "fsdp_config.fsdp_activation_checkpointing", grid.recompute is not Recompute.NONE
    yield "fsdp_config.fsdp_state_dict_type", "SHARDED_STATE_DICT"
    yield "fsdp_config.fsdp_cpu_ram_efficient_loading", False


def _degrees(grid: Grid) -> Iterator[Pair]:
    replicate, shard = fsdp2_degrees(grid)
    yield f"{PREFIX}dp_replicate_size", replicate
    yield f"{PREFIX}dp_shard_size", shard
    yield f"{PREFIX}tp_size", grid.tp
    yield f"{PREFIX}cp_size", grid.cp
    if grid.cp > 1:
        yield f"{PREFIX}cp_backend", "torch"
        yield f"{PREFIX}cp_comm_strategy", "allgather" if grid.gather else "alltoall"


def _of_deepspeed(given: Given) -> tuple[ExportFile, ...]:
    if not _trades_heads(given.grid):
        return ()
    # It makes DeepSpeed's groups of a sequence itself, from its own file.
    own = {
        key: value
        for key, value in deepspeed.configuration(given).items()
        if key not in ("sequence_parallel_size", "data_parallel_size")
    }
    return (ExportFile(name=deepspeed.CONFIG, text=json.dumps(own, indent=2) + "\n"),)


def _comments(given: Given) -> Iterator[str]:
    grid, job = given.grid, given.problem.job
    steps = job.global_batch // (grid.dp * grid.microbatch)
    yield f"{title(given)}. Made by Shardwright for Accelerate {ACCELERATE.version}."
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
        made_for=f"Accelerate {ACCELERATE.version}",
        before=("# The first argument is the training program.",),
        runs=("accelerate", "launch", "--config_file", f'"$(dirname "$0")/{FILE}"', node),
    )
