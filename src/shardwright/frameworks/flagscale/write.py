"""Exporter of FlagScale's YAML for its runner over Megatron-LM.

Stages with different degrees become one mesh for each run of equal stages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from shardwright.frameworks.export.decoder_view_and_unsupported_layers import decoder_of
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
    title,
)
from shardwright.frameworks.export.nest_dotted_settings import Settings
from shardwright.frameworks.export.unsupported_plan_features import other_framework_shortfalls
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.flagscale.settings import SETTINGS
from shardwright.frameworks.megatron.plan_arguments import (
    SHARDED,
    arguments,
    is_environment_variable,
    megatron_shortfalls,
    option_shortfalls,
)
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.hardware.cluster import Cluster
from shardwright.strategy.grid.group_plan_stages_by_degrees import Mesh, joined_mesh, stages_of

CONFIG, TRAIN = "config.yaml", "train/plan.yaml"
FRAMEWORKS: Final = ("FlagScale", "Megatron-Core")
"""Frameworks whose plans FlagScale runs as priced: it runs Megatron-Core."""
FP8_INPUTS: Final = "activation-func-fp8-input-store"
LISTS: Final = frozenset({"hierarchical-context-parallel-sizes", "recompute-modules"})
LAYOUT: Final = "pipeline-model-parallel-layout"
OF_MODEL: Final = frozenset(
    {"global-batch-size", "micro-batch-size", "seq-length", "max-position-embeddings"}
)
SYSTEM: Final = names(
    "parallel recompute optimizer overlap dispatcher fusion mapping bf16 fp16 fp8 reduce fsdp"
)
"""Parts of names of arguments in the section `system`; other arguments are in `model`."""


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that FlagScale cannot express, each with a substitute or a hint."""
    shortfalls = tuple(megatron_shortfalls(export, chunks=not export.meshes))
    yield from shortfalls
    if all(shortfall.instead for shortfall in shortfalls):
        yield from option_shortfalls(export, *FRAMEWORKS, names=(FP8_INPUTS,))
        if export.meshes:
            yield from _mesh_shortfalls(export)
        elif len(_accelerators_of_devices(export.problem.cluster, range(export.plan.devices))) > 1:
            yield Shortfall(
                what="devices of several kinds in one stage, or under several chunks a rank",
                hint="stages of one kind in 1f1b",
            )
    yield from other_framework_shortfalls(export, *FRAMEWORKS)


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """FlagScale's configuration and training file of a plan."""
    arguments_by_name = arguments(export, *FRAMEWORKS)
    environment = {
        name.replace("-", "_"): value
        for name, value in arguments_by_name
        if is_environment_variable(name)
    }
    train = _training_file(
        export,
        {
            name: value
            for name, value in arguments_by_name
            if not is_environment_variable(name) and name != FP8_INPUTS
        },
    )
    return (
        ExportFile(
            name=CONFIG,
            text=yaml_text(_runner_configuration(export, environment), comments=_comments(export)),
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


def _mesh_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Yield what FlagScale cannot express where stages differ: cp, dp, ep or sp that do not fit."""
    meshes, first = export.meshes, export.meshes[0].grid
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
    if decoder_of(export.problem.model).ties_embedding and (
        first.tp != last.tp or (first.dp % last.dp and last.dp % first.dp)
    ):
        yield Shortfall(
            what=f"an embedding that is the head, cut by tp {first.tp} and {last.tp}",
            hint="one tp for the first and last stage",
        )
    if any(len(_accelerators_of_stage(export, stage)) > 1 for stage in stages_of(meshes)):
        yield Shortfall(what="stages over devices of several kinds", hint="a kind for each stage")
        return
    kinds = [kind for kind, _ in _meshes_by_accelerator(export)]
    if [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before] != list(
        dict.fromkeys(kinds)
    ):
        yield Shortfall(
            what=f"stages on {', '.join(kinds)} in turns", hint="all stages of a kind in a row"
        )
    yield from _device_order_shortfalls(export)


def _device_order_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Yield a shortfall unless stages, and replicas in each, take devices in rank order."""
    at = 0
    for mesh in export.meshes:
        for bases in mesh.bases:
            share = mesh.grid.devices // len(bases)
            if bases != tuple(range(at, at + mesh.grid.devices, share)):
                yield Shortfall(
                    what="replicas of a stage, or stages, in another order of devices",
                    instead="ranks stage by stage",
                )
                return
            at += mesh.grid.devices


def _accelerators_of_devices(cluster: Cluster, devices: Collection[int]) -> set[str]:
    """Names of the accelerators of some devices of the cluster."""
    accelerators, start = set(), 0
    for group in cluster.groups:
        end = start + group.count * group.kind.num_devices
        if any(start <= device < end for device in devices):
            accelerators.add(group.kind.accelerator.name)
        start = end
    return accelerators


def _accelerators_of_stage(export: PlanToExport, stage: Mesh) -> set[str]:
    """Names of the accelerators at the ends of a stage's device range in each replica."""
    (bases,) = stage.bases
    share = stage.grid.devices // len(bases)
    return _accelerators_of_devices(
        export.problem.cluster, [device for base in bases for device in (base, base + share - 1)]
    )


def _meshes_by_accelerator(export: PlanToExport) -> list[tuple[str, Mesh]]:
    """(accelerator, mesh) of each run of adjacent stages with one grid and one kind of device."""
    meshes: list[tuple[str, Mesh]] = []
    for stage in stages_of(export.meshes):
        kind = min(_accelerators_of_stage(export, stage))
        if meshes and (meshes[-1][0], meshes[-1][1].grid) == (kind, stage.grid):
            meshes[-1] = (kind, joined_mesh(meshes[-1][1], stage))
        else:
            meshes.append((kind, stage))
    return meshes


def _hetero_section(export: PlanToExport) -> Settings:
    """Section `hetero`: meshes as tp, cp, ep, dp, stages; layer split; device types."""
    types, meshes = zip(*_meshes_by_accelerator(export), strict=True)
    section: Settings = {
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
        section["expert_tensor_parallel_size_per_process_mesh"] = [mesh.grid.etp for mesh in meshes]
    if decoder_of(export.problem.model).ties_embedding and meshes[0].grid.dp != meshes[-1].grid.dp:
        section["use_partial_reduce_for_shared_embedding"] = True
    return section


def _training_file(export: PlanToExport, arguments_by_name: dict[str, str]) -> Settings:
    """Settings of the training file: arguments in sections system, model, data; `hetero` meshes."""
    sections: Settings = {"system": {}, "model": {}, "data": {}}
    if export.meshes:
        # Its meshes say the stages.
        arguments_by_name.pop(LAYOUT, None)
        arguments_by_name |= {
            "pipeline-model-parallel-size": str(sum(len(mesh.layers) for mesh in export.meshes))
        }
        if any(mesh.grid.sp for mesh in export.meshes):
            arguments_by_name |= {"sequence-parallel": ""}
    for name, value in arguments_by_name.items():
        system = name not in OF_MODEL and any(word in name for word in SYSTEM)
        sections["system" if system else "model"][name.replace("-", "_")] = _yaml_value(name, value)
    if export.meshes:
        sections["system"] |= {"hetero": _hetero_section(export), **_recompute_per_stage(export)}
    return sections


def _recompute_per_stage(export: PlanToExport) -> Settings:
    """Settings of recomputed layers by stage, for all microbatches; empty if stages are alike.

    They apply to all microbatches.
    """
    if not export.grid.recompute_layers:
        return {}
    counts, steps = (
        [n for mesh in export.meshes for n in mesh.recomputed],
        export.plan.lanes[0].microbatches,
    )
    return {
        "recompute_granularity_per_stage_micro_batch": [
            [1, steps, int(count > 0)] for count in counts
        ],
        "recompute_num_layers_per_stage_micro_batch": [
            [1, steps, max(count, 1)] for count in counts
        ],
    }


def _yaml_value(name: str, value: str) -> Any:
    """Convert a Megatron-LM argument's text to a YAML value: switch, list, whole number or text."""
    if name in LISTS:
        return [_yaml_value("", word) for word in value.split()]
    if value in ("", "true", "false"):
        return value != "false"
    return int(value) if value.isdecimal() else value


def _runner_configuration(export: PlanToExport, environment: dict[str, str]) -> Settings:
    """Settings of FlagScale's runner file: experiment, launcher and environment."""
    queues = {} if export.grid.zero in SHARDED else {"CUDA_DEVICE_MAX_CONNECTIONS": 1}
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


def _comments(export: PlanToExport) -> Iterator[str]:
    """Comment lines at the head of the configuration."""
    yield f"{title(export)}. Made by Shardwright for FlagScale {SETTINGS.version}."
    yield "python run.py --config-path FOLDER --config-name config action=run"
    yield (
        "with a hostfile: a line for each node, ADDRESS slots=GPUS type=KIND; the kinds are those"
        " of hetero_device_types."
    )
    yield (
        "Data, tokenizer, learning rate and checkpoints are no part of a plan: add them to"
        " train/plan.yaml."
    )
