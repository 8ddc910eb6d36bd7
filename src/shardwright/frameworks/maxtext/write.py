"""Exporter of a MaxText configuration over ``base.yml``, and a start script.

Every mesh axis has a degree inside a slice (ICI) and one between slices (DCN).

Source of the mesh: MaxText, `logical_axis_rules` of configs/base.yml and utils/maxtext_utils.py
(`create_device_mesh`); of settings, see `settings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
    title,
)
from shardwright.frameworks.export.match_target_model_by_blocks import (
    hyperparameter_shortfalls,
    published_name,
)
from shardwright.frameworks.export.nest_dotted_settings import nested_sections, settings_of_flag
from shardwright.frameworks.export.plan_runtime_options_as_flags import option_flags_of_plan
from shardwright.frameworks.export.start_script import GPUS, MASTER, NODE, NODES, PORT, start_script
from shardwright.frameworks.export.unsupported_plan_features import (
    job_shortfalls,
    other_framework_shortfalls,
    partial_recompute_shortfalls,
    single_replica_shortfalls,
    universal_shortfalls,
)
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.maxtext.plan_mesh_axes_by_slice import degrees, mesh_shortfalls
from shardwright.frameworks.maxtext.settings import MODELS, PLACES, SCHEDULES, SETTINGS
from shardwright.frameworks.settings.setting_table import Pair, written_settings
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

FILE, SCRIPT = "maxtext.yml", "train.sh"
KEPT: Final = "minimal_with_context"
BASES: Final[Mapping[str, float]] = {
    "mistral-7b": 1e6,
    "qwen3-30b-a3b": 1e7,
    "qwen3-235b-a22b": 5e6,
}
"""Models that MaxText has with another rotary base (of a later release) -> that base."""


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that MaxText cannot express, each with a substitute or a hint."""
    model = export.problem.model
    if published_name(model, MODELS) is None:
        yield Shortfall(
            what=f"{model.name}: its configs/models has no model of these sizes",
            hint="a published size",
        )
    yield from hyperparameter_shortfalls(model, MODELS)
    base = BASES.get(published_name(model, MODELS) or "", model.settings.rope_base)
    if base != model.settings.rope_base:
        yield Shortfall(
            what=f"rotary positions by the base {model.settings.rope_base:g}",
            instead=f"by the base {base:g}",
        )
    yield from job_shortfalls(export, Dtype.BF16, Dtype.FP8)
    yield from _pipeline_shortfalls(export)
    yield from mesh_shortfalls(export)
    yield from _context_shortfalls(export)
    yield from _memory_shortfalls(export.grid)
    yield from other_framework_shortfalls(export, "MaxText")


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """MaxText's configuration and the start script of a plan."""
    text = yaml_text(nested_sections(_written_settings(export)), comments=_comments(export))
    return ExportFile(name=FILE, text=text), _script(export)


MAXTEXT: Final = Exporter(
    name="maxtext",
    version=SETTINGS.version,
    summary="a configuration over base.yml, with axes inside and between slices",
    shortfalls=_shortfalls,
    files=_files,
)


def _pipeline_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Shortfalls of a plan's pipeline: schedules, unequal chunks, microbatches."""
    grid = export.grid
    if grid.pp == 1:
        return
    if export.table is not None or grid.schedule not in SCHEDULES[grid.vpp > 1]:
        name = (
            "an order of its own" if export.table is not None else f"the schedule {grid.schedule}"
        )
        yield Shortfall(what=name, hint=f"{' or '.join(SCHEDULES[grid.vpp > 1])}")
    if len(set(export.chunks)) > 1:
        yield Shortfall(
            what=f"chunks of {', '.join(map(str, export.chunks))} layers",
            hint="chunks of as many layers",
        )
    if _microbatches(export) % grid.pp:
        yield Shortfall(
            what=f"{_microbatches(export)} microbatches in {grid.pp} stages",
            hint="a multiple of pp",
        )


def _microbatches(export: PlanToExport) -> int:
    """Number of microbatches that a replica runs in a step."""
    return export.problem.job.global_batch // (export.grid.dp * export.grid.microbatch)


def _context_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Shortfalls of context parallelism: Ulysses on GPUs; on TPUs uneven rings, mixed ones."""
    grid = export.grid
    if grid.cp == 1 or _context_strategy(grid) == "all_gather":
        return
    length, strategy = export.problem.job.sequence_length, _context_strategy(grid)
    if not _on_tpu(export):
        if strategy != "ring":
            yield Shortfall(
                what=f"ulysses {grid.ulysses} on GPUs", hint="a ring, or keys that are gathered"
            )
    elif strategy == "ulysses" and degrees(export)["context"][1] > 1:
        yield Shortfall(what=f"ulysses {grid.ulysses} between slices", hint="cp inside a slice")
    elif strategy == "ring" and (length % grid.cp**2 or grid.cp % 2):
        yield Shortfall(
            what=f"a ring of {grid.cp} over {length} tokens",
            hint="an even cp, whose square divides the tokens",
        )
    elif strategy == "mixed":
        yield Shortfall(
            what=f"ulysses {grid.ulysses} inside cp {grid.cp}", hint="a ring or ulysses alone"
        )


def _memory_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Shortfalls of a grid's ZeRO stage, recomputation and offload."""
    yield from single_replica_shortfalls(grid)
    if grid.zero == 2:
        yield Shortfall(
            what="zero2",
            instead="parameters that are sharded, too, and gathered for each use (zero3)",
        )
    if grid.zero == 1 and grid.shard and grid.shard < grid.dp * grid.cp:
        yield Shortfall(what=f"zero1 in groups of {grid.shard}", hint="shards over all replicas")
    if grid.zero < 2 and grid.cp * grid.ep > 1:
        over = " and ".join(axis for axis in ("cp", "ep") if getattr(grid, axis) > 1)
        yield Shortfall(
            what=f"zero{grid.zero} with {over}", instead=f"parameters that are sharded over {over}"
        )
    if grid.recompute is Recompute.NONE:
        yield Shortfall(
            what="no recompute",
            instead=f"{KEPT}: products and cores are kept, what lies between them is made again",
        )
    if grid.offload not in (0, 100):
        yield Shortfall(
            what=f"{grid.offload} % of the states on the host",
            instead="all of the states on the host",
        )
    yield from partial_recompute_shortfalls(grid)
    yield from universal_shortfalls(grid)


def _context_strategy(grid: Grid) -> str:
    """Name of the context parallel strategy: ring, all_gather, ulysses or mixed.

    Mixed is Ulysses inside a ring.
    """
    if grid.ulysses > 1:
        return "ulysses" if grid.ring == 1 else "mixed"
    return "all_gather" if grid.gather else "ring"


def _on_tpu(export: PlanToExport) -> bool:
    """True if the cluster's first node has TPUs."""
    return export.problem.cluster.node.accelerator.vendor == "Google"


def _written_settings(export: PlanToExport) -> Iterator[Pair]:
    """Yield (dotted name, value) of a plan's settings: table fields, then option flags."""
    yield from written_settings(SETTINGS, _field_values(export))
    # Its policy "full" beside a selective recompute keeps the products.
    selective = export.grid.recompute is Recompute.SELECTIVE
    apart = ("remat",) if not selective or _remat_policy(export) == "full" else ()
    for flag in option_flags_of_plan(export, "MaxText", apart=apart):
        yield from settings_of_flag(flag)


def _field_values(export: PlanToExport) -> dict[str, Any]:
    """Field of the settings table -> value for the plan; fields not to be written are absent."""
    grid, job = export.grid, export.problem.job
    steps = 1 if grid.pp > 1 else _microbatches(export)
    values: dict[str, Any] = {
        "base_config": "base.yml",
        "model_name": published_name(export.problem.model, MODELS),
        "hardware": "tpu" if _on_tpu(export) else "gpu",
        "precision": "bf16",
        "weight_dtype": "float32",
        "grad_dtype": "float32",
        "quantization": "fp8" if job.compute is Dtype.FP8 else "",
        "optimizer": "adamw",
        "seq_len": job.sequence_length,
        "device_samples": job.global_batch / steps / grid.devices,
        "steps": steps,
        "is_sharded_over_data": grid.zero == 1,
        "offload": 100 if grid.offload else 0,
        "policy": {Recompute.FULL: "full", Recompute.SELECTIVE: "minimal"}.get(
            grid.recompute, KEPT
        ),
    }
    for axis, parts in degrees(export).items():
        values |= {f"{place}_{axis}": part for place, part in zip(PLACES, parts, strict=True)}
    if grid.cp > 1:
        values["contexts"] = _context_strategy(grid)
        if _on_tpu(export) and _context_strategy(grid) == "ring":
            values |= {"attention": "flash", "use_tokamax_splash": True}
    if grid.pp > 1:
        values |= {
            "chunk_layers": export.chunks[0],
            "repeats": grid.vpp,
            "microbatches": _microbatches(export),
        }
    return values


def _remat_policy(export: PlanToExport) -> str:
    """Value of MaxText's remat_policy by the plan's runtime options; ``full`` if none sets it."""
    runtime = export.problem.runtime
    return {**dict(runtime.own), **dict(runtime.options), **dict(export.grid.options)}.get(
        "remat", "full"
    )


def _comments(export: PlanToExport) -> Iterator[str]:
    """Comment lines at the head of the configuration."""
    yield f"{title(export)}. Made by Shardwright for MaxText {SETTINGS.version}."
    yield f"{SCRIPT} run_name=RUN base_output_directory=FOLDER starts it."
    yield (
        "Data, tokenizer, learning rate and steps are no part of a plan: give them as further"
        " arguments."
    )


def _script(export: PlanToExport) -> ExportFile:
    """Start script of one node: a single JAX process that finds the others by variables."""
    variables = (
        f'NNODES="${{{NODES}:?}}" NODE_RANK="${NODE}" JAX_COORDINATOR_IP="${{{MASTER}:?}}"'
        f' JAX_COORDINATOR_PORT="${{{PORT}:?}}"'
    )
    return start_script(
        export,
        name=SCRIPT,
        made_for=f"MaxText {SETTINGS.version}",
        before=(
            (
                'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-$(seq -s , 0'
                f' $((${{{GPUS}:?}} - 1)))}}"'
            ),
            f'[ -z "${{{NODE}:-}}" ] || export {variables}',
        ),
        runs=("python3", "-m", "maxtext.trainers.pre_train.train", f'"$(dirname "$0")/{FILE}"'),
    )
