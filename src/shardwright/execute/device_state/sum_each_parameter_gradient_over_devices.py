"""Sum of every parameter's gradient over the devices that contribute to it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod
from operator import add

import torch

from shardwright.execute.device_state.parameter_views_of_flat_buckets import rows_within
from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    ParameterStore,
    StoredParameter,
)
from shardwright.execute.transport.communication_requests import Post, Reduce, Take, Task
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.model.ir.model_graph import Model
from shardwright.program.layout.tensor_layout import Box, count
from shardwright.program.stages.gradient_sum_groups import SumGroup, sum_groups
from shardwright.program.stages.held_parameters import shares_of
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.stages.uses_of_each_parameter import parameter_places

Groups = Mapping[Key, tuple[SumGroup, ...]]


def gradient_groups(
    stages: tuple[tuple[StageParts, ...], ...],
    *,
    model: Model,
    length: int,
    islands: Units | None,
    trainable: bool = True,
) -> Groups:
    """By parameter, groups of devices that sum gradients of the same elements, and their boxes.

    Args:
        trainable: False = of every frozen parameter: the devices with the same elements, as if they
            summed it.
    """
    result: dict[Key, tuple[SumGroup, ...]] = {}
    for key, places in parameter_places(stages, model=model).items():
        if places[0].parameter.trainable is trainable:
            shares = tuple(
                share
                for place in places
                for share in shares_of(place, first_device=0, length=length)
            )
            run, layer, operator, name = key
            result[key] = sum_groups(
                shares, islands=islands, path=f"{model.runs[run].name}.{layer}.{operator}.{name}"
            )
    return result


def dims_in_order(model: Model, key: Key) -> tuple[int, ...]:
    """Numbers of a parameter's dims, sorted by dim name, the order of gradient boxes."""
    run, _, operator, name = key
    block = model.blocks[model.runs[run].block]
    extents = next(
        p.extents
        for o in block.operators
        if o.name == operator
        for p in o.parameters
        if p.name == name
    )
    return tuple(sorted(range(len(extents)), key=lambda i: extents[i].dim.value))


def in_own_order(model: Model, key: Key, box: Box) -> Box:
    """Reorder a sum group's box from sorted dim names to the parameter's own order of dims."""
    order = dims_in_order(model, key)
    return tuple(box[order.index(i)] for i in range(len(order)))


def sum_gradients(device: int, groups: Groups, store: ParameterStore) -> Task[None]:
    """Sum each parameter's gradient over its devices, into the gradients of the device's `store`.

    Afterwards each of its parts has the whole step's gradient.
    """
    for key in sorted(groups):
        stored_parts = list(store.held.get(key, {}).values())
        order = dims_in_order(store.model, key)
        for number, group in enumerate(groups[key]):
            summing_group = next((g for g in group.groups if device in g), ())
            copy_group = next((c for c in group.copies if device in c), ())
            if not summing_group and not copy_group:
                continue
            total = _local_sum(stored_parts, group.boxes, order, dtype=store.precision.gradient)
            if len(summing_group) > 1:
                total = yield Reduce(
                    group=tuple(sorted(summing_group)), tensor=total, key=("gradient", key, number)
                )
            if copy_group and copy_group[0] == device:
                for duplicate in copy_group[1:]:
                    yield Post(to=duplicate, tensor=total, key=("copy", key, number, duplicate))
            elif copy_group:
                total = yield Take(
                    source=copy_group[0],
                    shape=tuple(total.shape),
                    key=("copy", key, number, device),
                    dtype=total.dtype,
                )
            _write_sums(stored_parts, group.boxes, order, total)


def _local_sum(
    stored_parts: list[StoredParameter],
    boxes: tuple[Box, ...],
    order: tuple[int, ...],
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Flat sum of the device's own gradients in the boxes, over all stored parts of a parameter."""
    flat = []
    for box in boxes:
        shape = tuple(count(i) for i in box)
        parts = [torch.zeros(shape, dtype=dtype, device=stored_parts[0].value.device)]
        for stored in stored_parts:
            rows = rows_within(box, tuple(stored.box[i] for i in order))
            if rows is not None and stored.gradient is not None:
                parts.append(stored.gradient.permute(order)[rows])
        flat.append(reduce(add, parts).reshape(-1))
    return torch.cat(flat)


def _write_sums(
    stored_parts: list[StoredParameter],
    boxes: tuple[Box, ...],
    order: tuple[int, ...],
    total: torch.Tensor,
) -> None:
    """Write the flat sums of gradients into each stored part that covers their boxes."""
    start = 0
    for box in boxes:
        size = prod(count(i) for i in box)
        values = total[start : start + size].reshape(tuple(count(i) for i in box))
        start += size
        for stored in stored_parts:
            rows = rows_within(box, tuple(stored.box[i] for i in order))
            if rows is not None:
                if stored.gradient is None:
                    stored.gradient = torch.zeros_like(stored.value, dtype=total.dtype)
                stored.gradient.permute(order)[rows] = values
