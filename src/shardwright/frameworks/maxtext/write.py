"""MaxText: a configuration over its ``base.yml``, with every axis of its mesh inside a slice (ICI)
and between slices (DCN).

Source of the mesh: MaxText, `logical_axis_rules` of configs/base.yml and utils/maxtext_utils.py
(`create_device_mesh`); of settings, see `settings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.common_shortfalls import (
    another_framework,
    in_no_target,
    of_one_replica,
    of_the_job,
    some_recomputed,
)
from shardwright.frameworks.export.exporter import Exporter, ExportFile, Given, Shortfall, title
from shardwright.frameworks.export.nested_settings import nested, settings_of
from shardwright.frameworks.export.option_flags import flags_set
from shardwright.frameworks.export.published_models import other_numbers, published
from shardwright.frameworks.export.start_script import GPUS, MASTER, NODE, NODES, PORT, start_script
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.maxtext.mesh import degrees, mesh_shortfalls
from shardwright.frameworks.maxtext.settings import MODELS, PLACES, SCHEDULES, SETTINGS
from shardwright.frameworks.settings.setting_table import Pair, written_settings
from shardwright.strategy.grid.grid import Grid, Recompute

FILE, SCRIPT = "maxtext.yml", "train.sh"
KEPT: Final = "minimal_with_context"
BASES: Final[Mapping[str, float]] = {
    "mistral-7b": 1e6,
    "qwen3-30b-a3b": 1e7,
    "qwen3-235b-a22b": 5e6,
}
"""Of these, whose rotary positions turn by another base there (that of a later release)."""


def _shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a plan that MaxText cannot express, each with the reason."""
    model = given.problem.model
    if published(model, MODELS) is None:
        yield Shortfall(
            what=f"{model.name}: its configs/models has no model of these sizes",
            hint="a published size",
        )
    yield from other_numbers(model, MODELS)
    base = BASES.get(published(model, MODELS) or "", model.settings.rope_base)
    if base != model.settings.rope_base:
        yield Shortfall(
            what=f"rotary positions by the base {model.settings.rope_base:g}",
            instead=f"by the base {base:g}",
        )
    yield from of_the_job(given, Dtype.BF16, Dtype.FP8)
    yield from _of_pipelines(given)
    yield from mesh_shortfalls(given)
    yield from _of_contexts(given)
    yield from _of_memory(given.grid)
    yield from another_framework(given, "MaxText")


def _files(given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan of which nothing, or only what may be lost, is lacking."""
    text = yaml_text(nested(_settings(given)), comments=_comments(given))
    return ExportFile(name=FILE, text=text), _script(given)


MAXTEXT: Final = Exporter(
    name="maxtext",
    version=SETTINGS.version,
    summary="a configuration over base.yml, with axes inside and between slices",
    shortfalls=_shortfalls,
    files=_files,
)


def _of_pipelines(given: Given) -> Iterator[Shortfall]:
    grid = given.grid
    if grid.pp == 1:
        return
    if given.table is not None or grid.schedule not in SCHEDULES[grid.vpp > 1]:
        name = "an order of its own" if given.table is not None else f"the schedule {grid.schedule}"
        yield Shortfall(what=name, hint=f"{' or '.join(SCHEDULES[grid.vpp > 1])}")
    if len(set(given.chunks)) > 1:
        yield Shortfall(
            what=f"chunks of {', '.join(map(str, given.chunks))} layers",
            hint="chunks of as many layers",
        )
    if _microbatches(given) % grid.pp:
        yield Shortfall(
            what=f"{_microbatches(given)} microbatches in {grid.pp} stages", hint="a multiple of pp"
        )


def _microbatches(given: Given) -> int:
    return given.problem.job.global_batch // (given.grid.dp * given.grid.microbatch)


def _of_contexts(given: Given) -> Iterator[Shortfall]:
    grid = given.grid
    if grid.cp == 1 or _strategy(grid) == "all_gather":
        return
    length, strategy = given.problem.job.sequence_length, _strategy(grid)
    if not _on_tpu(given):
        if strategy != "ring":
            yield Shortfall(
                what=f"ulysses {grid.ulysses} on GPUs", hint="a ring, or keys that are gathered"
            )
    elif strategy == "ulysses" and degrees(given)["context"][1] > 1:
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


def _of_memory(grid: Grid) -> Iterator[Shortfall]:
    yield from of_one_replica(grid)
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
    yield from some_recomputed(grid)
    yield from in_no_target(grid)


def _strategy(grid: Grid) -> str:
    """Of context parallelism; mixed = heads are traded inside a ring."""
    if grid.ulysses > 1:
        return "ulysses" if grid.ring == 1 else "mixed"
    return "all_gather" if grid.gather else "ring"


def _on_tpu(given: Given) -> bool:
    return given.problem.cluster.node.accelerator.vendor == "Google"


def _settings(given: Given) -> Iterator[Pair]:
    yield from written_settings(SETTINGS, _values(given))
    # Its policy "full" beside a selective recompute keeps the products.
    selective = given.grid.recompute is Recompute.SELECTIVE
    apart = ("remat",) if not selective or _named(given) == "full" else ()
    for flag in flags_set(given, "MaxText", apart=apart):
        yield from settings_of(flag)


def _values(given: Given) -> dict[str, Any]:
    """The values of the table's fields."""
    grid, job = given.grid, given.problem.job
    steps = 1 if grid.pp > 1 else _microbatches(given)
    found: dict[str, Any] = {
        "base_config": "base.yml",
        "model_name": published(given.problem.model, MODELS),
        "hardware": "tpu" if _on_tpu(given) else "gpu",
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
    for axis, parts in degrees(given).items():
        found |= {f"{place}_{axis}": part for place, part in zip(PLACES, parts, strict=True)}
    if grid.cp > 1:
        found["contexts"] = _strategy(grid)
        if _on_tpu(given) and _strategy(grid) == "ring":
            found |= {"attention": "flash", "use_tokamax_splash": True}
    if grid.pp > 1:
        found |= {
            "chunk_layers": given.chunks[0],
            "repeats": grid.vpp,
            "microbatches": _microbatches(given),
        }
    return found


def _named(given: Given) -> str:
    runtime = given.problem.runtime
    return {**dict(runtime.own), **dict(runtime.options), **dict(given.grid.options)}.get(
        "remat", "full"
    )


def _comments(given: Given) -> Iterator[str]:
    yield f"{title(given)}. Made by Shardwright for MaxText {SETTINGS.version}."
    yield f"{SCRIPT} run_name=RUN base_output_directory=FOLDER starts it."
    yield (
        "Data, tokenizer, learning rate and steps are no part of a plan: give them as further"
        " arguments."
    )


def _script(given: Given) -> ExportFile:
    """One process a node, which finds the others by what its `initialize_jax_for_gpu` reads."""
    told = (
        f'NNODES="${{{NODES}:?}}" NODE_RANK="${NODE}" JAX_COORDINATOR_IP="${{{MASTER}:?}}"'
        f' JAX_COORDINATOR_PORT="${{{PORT}:?}}"'
    )
    return start_script(
        given,
        name=SCRIPT,
        made_for=f"MaxText {SETTINGS.version}",
        before=(
            (
                'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-$(seq -s , 0'
                f' $((${{{GPUS}:?}} - 1)))}}"'
            ),
            f'[ -z "${{{NODE}:-}}" ] || export {told}',
        ),
        runs=("python3", "-m", "maxtext.trainers.pre_train.train", f'"$(dirname "$0")/{FILE}"'),
    )
