"""Sum every parameter's gradient over the devices that contribute to it, by the groups that
lowering derives.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod
from operator import add

import torch

from shardwright.execute.device_state.device_parameters import Key, ParameterStore, StoredParameter
from shardwright.execute.transport.requests import Post, Reduce, Take, Task
from shardwright.hardware.device_topology import Units
from shardwright.model.ir.model_graph import Model
from shardwright.program.layout.tensor_layout import Box, Indices, count
from shardwright.program.stages.gradient_sum_groups import SumGroup, sum_groups
from shardwright.program.stages.held_parameters import parameter_places, shares_of
from shardwright.program.stages.stage_segments import StageParts

Groups = Mapping[Key, tuple[SumGroup, ...]]


def gradient_groups(
    stages: tuple[tuple[StageParts, ...], ...],
    *,
    model: Model,
    length: int,
    islands: Units | None,
    trainable: bool = True,
) -> Groups:
    """The sum groups of every trainable parameter, boxes in the order of its owner's dims.

    Args:
        trainable: False = of every frozen one: who holds the same, as if they summed it.
    """
    result: dict[Key, tuple[SumGroup, ...]] = {}
    for key, places in parameter_places(stages, model=model).items():
        if places[0].parameter.trainable is trainable:
            shares = tuple(
                share for place in places for share in shares_of(place, base=0, length=length)
            )
            run, layer, operator, name = key
            result[key] = sum_groups(
                shares, islands=islands, path=f"{model.runs[run].name}.{layer}.{operator}.{name}"
            )
    return result


def dims_in_order(model: Model, key: Key) -> tuple[int, ...]:
    """Positions of a parameter's dims as sum groups have them (sorted by name),
    in its own order.
    """
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
    """A box of a sum group with the dims in the parameter's own order."""
    order = dims_in_order(model, key)
    return tuple(box[order.index(i)] for i in range(len(order)))


def sum_gradients(device: int, groups: Groups, store: ParameterStore) -> Task[None]:
    """Sum the gradients of all parameters that `device` holds; afterwards each of its parts has the
    whole step's gradient.
    """
    for key in sorted(groups):
        held = list(store.held.get(key, {}).values())
        order = dims_in_order(store.model, key)
        for number, group in enumerate(groups[key]):
            mine = next((g for g in group.groups if device in g), ())
            sender = next((c for c in group.copies if device in c), ())
            if not mine and not sender:
                continue
            total = _local(held, group.boxes, order, dtype=store.precision.gradient)
            if len(mine) > 1:
                total = yield Reduce(
                    group=tuple(sorted(mine)), tensor=total, key=("gradient", key, number)
                )
            if sender and sender[0] == device:
                for other in sender[1:]:
                    yield Post(to=other, tensor=total, key=("copy", key, number, other))
            elif sender:
                total = yield Take(
                    source=sender[0],
                    shape=tuple(total.shape),
                    key=("copy", key, number, device),
                    dtype=total.dtype,
                )
            _write(held, group.boxes, order, total)


def _inside(inner: Indices, outer: Indices) -> torch.Tensor | None:
    """Rows of a list of indices `outer` where those of `inner` stand; None if one is missing."""
    rows: list[torch.Tensor] = []
    for a, b in inner:
        start = 0
        for low, high in outer:
            if low <= a and b <= high:
                rows.append(torch.arange(start + a - low, start + b - low))
                break
            start += high - low
        else:
            return None
    return torch.cat(rows)


def _rows(
    held: StoredParameter, box: Box, order: tuple[int, ...]
) -> tuple[torch.Tensor, ...] | None:
    found = [
        _inside(inner, outer)
        for inner, outer in zip(box, (held.box[i] for i in order), strict=True)
    ]
    return None if any(f is None for f in found) else tuple(f for f in found if f is not None)


def _local(
    held: list[StoredParameter],
    boxes: tuple[Box, ...],
    order: tuple[int, ...],
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The device's own sum for all boxes, flat: of every part that covers a box."""
    flat = []
    for box in boxes:
        shape = tuple(count(i) for i in box)
        parts = [torch.zeros(shape, dtype=dtype, device=held[0].value.device)]
        for one in held:
            rows = _rows(one, box, order)
            if rows is not None and one.gradient is not None:
                parts.append(one.gradient.permute(order)[torch.meshgrid(*rows, indexing="ij")])
        flat.append(reduce(add, parts).reshape(-1))
    return torch.cat(flat)


def _write(
    held: list[StoredParameter], boxes: tuple[Box, ...], order: tuple[int, ...], total: torch.Tensor
) -> None:
    start = 0
    for box in boxes:
        size = prod(count(i) for i in box)
        values = total[start : start + size].reshape(tuple(count(i) for i in box))
        start += size
        for one in held:
            rows = _rows(one, box, order)
            if rows is not None:
                if one.gradient is None:
                    one.gradient = torch.zeros_like(one.value, dtype=total.dtype)
                one.gradient.permute(order)[torch.meshgrid(*rows, indexing="ij")] = values
