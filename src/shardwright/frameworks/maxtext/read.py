"""Reader of MaxText's configurations and command-line overrides."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.launch.build_launch import launch_of
from shardwright.frameworks.launch.compare_model_sizes_in_settings_with_model import (
    MAXTEXT as SIZES,
)
from shardwright.frameworks.launch.compare_model_sizes_in_settings_with_model import (
    compared_name,
    compared_sizes,
)
from shardwright.frameworks.launch.framework_detection import FileKind, NamedFile, Signature
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.maxtext.settings import AXES, MODELS, PLACES, SCHEDULES, SETTINGS
from shardwright.frameworks.settings.refuse_unpriced_settings import refuse
from shardwright.frameworks.settings.setting_table import values_of
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

_STRATEGIES: Final = ("ring", "ulysses", "all_gather")
MAX_SAMPLES: Final = 10**9
_SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
    programs=frozenset({"maxtext.train", "maxtext/train.py", "maxtext.trainers.pre_train.train"}),
    own=frozenset(
        {
            *(
                f"{place}-{name.replace('_', '-')}-parallelism"
                for name in AXES.values()
                for place in PLACES
            ),
            "per-device-batch-size",
            "max-target-length",
            "remat-policy",
            "base-emb-dim",
            "base-num-decoder-layers",
        }
    ),
    shared=frozenset({"model-name"}),
    files=(NamedFile(setting="", holds="the strategy", own=frozenset({"base.yml"})),),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert MaxText's settings to a launch: strategy, batch, and a verdict on each setting."""
    arguments = file_settings.arguments
    refuse(arguments, SETTINGS.refused)
    values = values_of(SETTINGS, arguments)
    sizes = _mesh_degrees(values, devices)
    inner = {axis: ici * dcn for axis, (ici, dcn) in sizes.items()}
    tp, cp, pp = inner["tensor"] * inner["tensor_sequence"], inner["context"], inner["stage"]
    ep = inner["expert"]
    dp = ep * inner["fsdp"] * inner["data"]
    batch = _samples_of_all_devices(values, devices) * values["steps"]
    microbatches = values["microbatches"] or pp if pp > 1 else values["steps"]
    sharded = inner["fsdp"] > 1 or cp * ep > 1
    strategy = values["contexts"] or "all_gather"
    if cp > 1 and strategy not in _STRATEGIES:
        raise DataError(
            f"context_parallel_strategy {strategy[:40]!r} is not known here",
            hint=", ".join(_STRATEGIES),
        )
    repeats = values["repeats"] or 1 if pp > 1 else 1
    grid = Grid(
        tp=tp,
        sp=inner["tensor_sequence"] > 1,
        cp=cp,
        ulysses=cp if strategy == "ulysses" else 1,
        gather=cp > 1 and strategy == "all_gather",
        ep=ep,
        etp=tp if ep > 1 else 1,
        dp=dp,
        pp=pp,
        vpp=repeats,
        microbatch=max(batch // max(dp * microbatches, 1), 1),
        zero=3 if sharded else int(values["is_sharded_over_data"]),
        shard=inner["fsdp"] * cp * ep if sharded and inner["data"] > 1 else 0,
        recompute=Recompute.FULL if values["policy"] == "full" else Recompute.SELECTIVE,
        offload=values["offload"],
        schedule=SCHEDULES[repeats > 1][0] if pp > 1 else "1f1b",
        order=_axis_order(sizes),
    )
    return launch_of(
        file_settings,
        grid,
        framework="maxtext",
        runtime=runtime,
        model=model,
        seq_len=values["seq_len"],
        global_batch=batch,
        precision="fp8" if "fp8" in (values["quantization"] or "") else "bf16",
        table=SETTINGS,
        of_model=(
            *compared_name(arguments, ("model-name",), MODELS, model),
            *compared_sizes(arguments, SIZES, model),
        ),
        arguments=_option_settings(arguments),
    )


MAXTEXT: Final = LaunchReader(
    name="maxtext",
    runtime="maxtext",
    signature=_SIGNATURE,
    settings=SETTINGS,
    target="maxtext",
    read=_read,
)


def _mesh_degrees(values: Mapping[str, Any], devices: int) -> dict[str, tuple[int, int]]:
    """Mesh axis -> (degree inside a slice, between slices); -1, or unset fsdp or data: the rest.

    An axis of -1 takes the remaining devices.

    Raises:
        StrategyError: the product of the degrees is not the number of devices.
    """
    degrees = {(axis, place): values[f"{place}_{axis}"] for axis in AXES for place in PLACES}
    sizes = {key: 1 if size in (None, -1) else size for key, size in degrees.items()}
    product = prod(max(size, 1) for size in sizes.values())
    # By default replicas between slices and shards inside take the rest.
    unset = [key for key in (("fsdp", "ici"), ("data", "dcn")) if degrees[key] is None]
    left = [key for key, size in degrees.items() if size == -1][-1:] or unset[:1]
    if left and devices % product == 0:
        sizes[left[0]] = devices // product
        product = devices
    if product != devices:
        raise StrategyError(
            f"axes of {product} devices, the cluster has {devices}",
            hint="the CLUSTER of the launch",
            rule="grid.devices",
        )
    return {axis: (sizes[axis, "ici"], sizes[axis, "dcn"]) for axis in AXES}


def _samples_of_all_devices(values: Mapping[str, Any], devices: int) -> int:
    """Samples that all devices process at once: samples a device (may be below 1) x devices."""
    device_samples = values["device_samples"]
    samples = round(device_samples * devices) if abs(device_samples) <= MAX_SAMPLES else 0
    if not 1 <= samples <= MAX_SAMPLES:
        raise DataError(
            f"per_device_batch_size {device_samples:g} on {devices} devices is no sample",
            hint="such as 4, or 0.25",
        )
    return samples


def _axis_order(sizes: dict[str, tuple[int, int]]) -> tuple[str, ...]:
    """Axis order of the grid, innermost first: tp, cp, ep, then dp and pp, inside a slice first.

    The axis inside a slice is the inner one; of two others, the inner axis of the mesh.
    """
    over = next((axis for axis in ("fsdp", "data") if max(sizes[axis]) > 1), "expert")
    place = {
        axis: (sizes[axis][0] == 1 and sizes[axis][1] > 1, list(AXES).index(axis))
        for axis in (over, "stage")
    }
    return ("tp", "cp", "ep", *(("pp", "dp") if place["stage"] < place[over] else ("dp", "pp")))


def _option_settings(arguments: Arguments) -> Arguments:
    """Settings that may set runtime options: not false, no remat-policy ``full`` or ``minimal``."""
    return {
        name: value
        for name, value in arguments.items()
        if value != "false" and not (name == "remat-policy" and value in ("full", "minimal"))
    }
