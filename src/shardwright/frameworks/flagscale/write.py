"""FlagScale: the files of its runner over Megatron-LM, with a mesh for each run of stages that have
degrees of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from shardwright.frameworks.export.common_shortfalls import another_framework
from shardwright.frameworks.export.exporter import Exporter, ExportFile, Given, Shortfall, title
from shardwright.frameworks.export.nested_settings import Settings
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.flagscale.settings import SETTINGS
from shardwright.frameworks.megatron.plan_arguments import (
    SHARDED,
    arguments,
    megatron_shortfalls,
    of_environment,
    unsaid_options,
)
from shardwright.frameworks.settings.name_lists import names
from shardwright.hardware.cluster import Cluster
from shardwright.strategy.grid.grid_by_stage import Mesh, joined, stages_of

CONFIG, TRAIN = "config.yaml", "train/plan.yaml"
FRAMEWORKS: Final = ("FlagScale", "Megatron-Core")
"""It runs Megatron-Core, whose times are its own."""
FP8_INPUTS: Final = "activation-func-fp8-input-store"
LISTS: Final = frozenset({"hierarchical-context-parallel-sizes", "recompute-modules"})
LAYOUT: Final = "pipeline-model-parallel-layout"
OF_MODEL: Final = frozenset(
    {"global-batch-size", "micro-batch-size", "seq-length", "max-position-embeddings"}
)
SYSTEM: Final = names(
    "parallel recompute optimizer overlap dispatcher fusion mapping bf16 fp16 fp8 reduce fsdp"
)
"""Words in arguments of the section of how it runs; the others are the model's."""


def _shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a plan that FlagScale cannot express, each with the reason."""
    lacking = tuple(megatron_shortfalls(given, chunks=not given.meshes))
    yield from lacking
    if all(one.instead for one in lacking):
        yield from unsaid_options(given, *FRAMEWORKS, names=(FP8_INPUTS,))
        if given.meshes:
            yield from _of_meshes(given)
        elif len(_kinds(given.problem.cluster, range(given.plan.devices))) > 1:
            yield Shortfall(
                what="devices of several kinds in one stage, or under several chunks a rank",
                hint="stages of one kind in 1f1b",
            )
    yield from another_framework(given, *FRAMEWORKS)


def _files(given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan of which nothing, or only what may be lost, is lacking."""
    said = arguments(given, *FRAMEWORKS)
    environment = {name.replace("-", "_"): value for name, value in said if of_environment(name)}
    train = _train(
        given,
        {name: value for name, value in said if not of_environment(name) and name != FP8_INPUTS},
    )
    return (
        ExportFile(
            name=CONFIG, text=yaml_text(_config(given, environment), comments=_comments(given))
        ),
        ExportFile(
            name=TRAIN,
            text=yaml_text(train, comments=(f"Read by {CONFIG} beside this folder.",)),
        ),
    )


FLAGSCALE: Final = Exporter(
    name="flagscale",
    version=SETTINGS.version,
    summary="files of its runner, stages of unlike degrees among them",
    stages_differ=True,
    shortfalls=_shortfalls,
    files=_files,
)


def _of_meshes(given: Given) -> Iterator[Shortfall]:
    meshes, first = given.meshes, given.meshes[0].grid
    grids = [mesh.grid for mesh in meshes]
    if any((g.cp, g.ulysses, g.gather) != (first.cp, first.ulysses, first.gather) for g in grids):
        yield Shortfall(
            what=f"stages of cp {' and '.join(str(g.cp) for g in grids)}", hint="one cp"
        )
    if any(first.dp * first.microbatch % g.dp for g in grids):
        what = (
            f"microbatches of {first.dp * first.microbatch} samples over"
            f" {' and '.join(str(g.dp) for g in grids)} replicas"
        )
        yield Shortfall(what=what, hint="whole samples on each")
    if len({g.ep == 1 for g in grids}) > 1:
        yield Shortfall(
            what="experts that are dealt on some stages alone", hint="ep of all stages, or of none"
        )
    if len({g.sp for g in grids if g.tp > 1}) > 1:
        yield Shortfall(
            what="sp on some stages alone", hint="sp of all stages that have tp, or of none"
        )
    last = grids[-1]
    if not _untied(given) and (first.tp != last.tp or (first.dp % last.dp and last.dp % first.dp)):
        yield Shortfall(
            what=f"an embedding that is the head, cut by tp {first.tp} and {last.tp}",
            hint="one tp for the first and last stage",
        )
    if any(len(_kinds_of(given, stage)) > 1 for stage in stages_of(meshes)):
        yield Shortfall(what="stages over devices of several kinds", hint="a kind for each stage")
        return
    kinds = [kind for kind, _ in _typed(given)]
    if [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before] != list(
        dict.fromkeys(kinds)
    ):
        yield Shortfall(
            what=f"stages on {', '.join(kinds)} in turns", hint="all stages of a kind in a row"
        )
    yield from _of_places(given)


def _of_places(given: Given) -> Iterator[Shortfall]:
    """Stages on other devices than where its ranks, mesh by mesh and stage by stage, put them."""
    at = 0
    for mesh in given.meshes:
        for bases in mesh.bases:
            share = mesh.grid.devices // len(bases)
            if bases != tuple(range(at, at + mesh.grid.devices, share)):
                yield Shortfall(
                    what="replicas of a stage, or stages, in another order of devices",
                    instead="ranks stage by stage",
                )
                return
            at += mesh.grid.devices


def _untied(given: Given) -> bool:
    return any(name == "untie-embeddings-and-output-weights" for name, _ in arguments(given))


def _kinds(cluster: Cluster, devices: Collection[int]) -> set[str]:
    """Accelerators that devices are."""
    found, start = set(), 0
    for group in cluster.groups:
        end = start + group.count * group.kind.num_devices
        if any(start <= device < end for device in devices):
            found.add(group.kind.accelerator.name)
        start = end
    return found


def _kinds_of(given: Given, stage: Mesh) -> set[str]:
    """Accelerators that the devices of a stage are: a replica's lie side by side."""
    (bases,) = stage.bases
    share = stage.grid.devices // len(bases)
    return _kinds(
        given.problem.cluster, [device for base in bases for device in (base, base + share - 1)]
    )


def _typed(given: Given) -> list[tuple[str, Mesh]]:
    """Its meshes: runs of stages of the same degrees on devices of one kind, with that kind."""
    found: list[tuple[str, Mesh]] = []
    for stage in stages_of(given.meshes):
        kind = min(_kinds_of(given, stage))
        if found and (found[-1][0], found[-1][1].grid) == (kind, stage.grid):
            found[-1] = (kind, joined(found[-1][1], stage))
        else:
            found.append((kind, stage))
    return found


def _hetero(given: Given) -> Settings:
    """The section of meshes: tp, cp, ep, dp and stages of each."""
    types, meshes = zip(*_typed(given), strict=True)
    found: Settings = {
        "enable_hetero": True,
        "hetero_process_meshes": [
            n for m in meshes for n in (m.grid.tp, m.grid.cp, m.grid.ep, m.grid.dp, len(m.layers))
        ],
        "hetero_pipeline_layer_split": [layers for mesh in meshes for layers in mesh.layers],
        "hetero_device_types": list(types),
        "hetero_current_device_type": types[0],
        "standalone_embedding_stage": False,
    }
    if any(mesh.grid.ep > 1 for mesh in meshes):
        found["expert_tensor_parallel_size_per_process_mesh"] = [mesh.grid.etp for mesh in meshes]
    if not _untied(given) and meshes[0].grid.dp != meshes[-1].grid.dp:
        found["use_partial_reduce_for_shared_embedding"] = True
    return found


def _train(given: Given, said: dict[str, str]) -> Settings:
    sections: Settings = {"system": {}, "model": {}, "data": {}}
    if given.meshes:
        # Its meshes say the stages.
        said.pop(LAYOUT, None)
        said |= {
            "pipeline-model-parallel-size": str(sum(len(mesh.layers) for mesh in given.meshes))
        }
        if any(mesh.grid.sp for mesh in given.meshes):
            said |= {"sequence-parallel": ""}
    for name, value in said.items():
        system = name not in OF_MODEL and any(word in name for word in SYSTEM)
        sections["system" if system else "model"][name.replace("-", "_")] = _value(name, value)
    if given.meshes:
        sections["system"] |= {"hetero": _hetero(given), **_recomputed(given)}
    return sections


def _recomputed(given: Given) -> Settings:
    """Layers that each stage recomputes in all of its microbatches, where stages differ in that."""
    if not given.grid.recompute_layers:
        return {}
    counts, steps = (
        [n for mesh in given.meshes for n in mesh.recomputed],
        given.plan.lanes[0].microbatches,
    )
    return {
        "recompute_granularity_per_stage_micro_batch": [
            [1, steps, int(count > 0)] for count in counts
        ],
        "recompute_num_layers_per_stage_micro_batch": [
            [1, steps, max(count, 1)] for count in counts
        ],
    }


def _value(name: str, value: str) -> Any:
    """A value as YAML: switches are true or false, lists are lists, numbers stay as they are
    written.
    """
    if name in LISTS:
        return [_value("", word) for word in value.split()]
    if value in ("", "true", "false"):
        return value != "false"
    return int(value) if value.isdecimal() else value


def _config(given: Given, environment: dict[str, str]) -> Settings:
    queues = {} if given.grid.zero in SHARDED else {"CUDA_DEVICE_MAX_CONNECTIONS": 1}
    return {
        "defaults": [{"train": "plan"}, "_self_"],
        "experiment": {
            "exp_name": "shardwright",
            "exp_dir": "./outputs",
            "task": {
                "type": "train",
                "backend": "megatron",
                "entrypoint": "./flagscale/train/train_gpt.py",
            },
            "runner": {"backend": "torchrun", "rdzv_backend": "static", "hostfile": "hostfile"},
            "envs": queues | environment,
        },
        "action": "run",
        "hydra": {"run": {"dir": "${experiment.exp_dir}/hydra"}},
    }


def _comments(given: Given) -> Iterator[str]:
    yield f"{title(given)}. Made by Shardwright for FlagScale {SETTINGS.version}."
    yield "python run.py --config-path FOLDER --config-name config action=run"
    yield (
        "with a hostfile: a line for each node, ADDRESS slots=GPUS type=KIND; the kinds are those"
        " of hetero_device_types."
    )
    yield (
        "Data, tokenizer, learning rate and checkpoints are no part of a plan: add them to"
        " train/plan.yaml."
    )
