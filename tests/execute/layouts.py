"""Tensors of random layouts, and what devices do with them."""

from __future__ import annotations

from random import Random

import torch

from shardwright.execute.redistribution.run_layout_transition import (
    Tensors,
    receive_edge,
    redistribute,
    send_edge,
)
from shardwright.execute.transport.communication_requests import Reduce, Task
from shardwright.program.layout.tensor_layout import Box, Holding, Layout
from tests.program.test_transition import SIDE, cells_of, filled


def tensor_of(box: Box, values: dict[tuple[int, ...], int]) -> torch.Tensor:
    sizes = [sum(high - low for low, high in dim) for dim in box]
    return torch.tensor([values[cell] for cell in cells_of(box)], dtype=torch.float64).reshape(
        sizes
    )


def held(
    source: Layout, random: Random
) -> tuple[dict[int, list[torch.Tensor]], dict[tuple[int, ...], int]]:
    """(tensors of each device's holdings, global values) of random integers."""
    store, value = filled(source, random)
    tensors: dict[int, list[torch.Tensor]] = {}
    for h in source:
        own = {cell: store[h.device, cell] for cell in cells_of(h.box)}
        tensors.setdefault(h.device, []).append(tensor_of(h.box, own))
    return tensors, {cell: one for (_, cell), one in value.items()}


def expected(wanted: Layout, values: dict[tuple[int, ...], int]) -> dict[int, list[torch.Tensor]]:
    result: dict[int, list[torch.Tensor]] = {}
    for h in wanted:
        result.setdefault(h.device, []).append(tensor_of(h.box, values))
    return result


def devices_of(*layouts: Layout) -> list[int]:
    return sorted({h.device for layout in layouts for h in layout})


def whole_tasks(
    tensors: dict[int, list[torch.Tensor]],
    source: Layout,
    wanted: Layout,
    keywords: dict[str, object],
    *,
    key: object = "x",
) -> dict[int, Task[Tensors]]:
    return {
        device: redistribute(
            tensors.get(device, []),
            source,
            wanted,
            device=device,
            key=key,
            dtype=torch.float64,
            **keywords,
        )  # type: ignore[arg-type]
        for device in devices_of(source, wanted)
    }


def two_sided(
    tensors: dict[int, list[torch.Tensor]],
    source: Layout,
    wanted: Layout,
    keywords: dict[str, object],
    *,
    device: int,
    key: object = "x",
) -> Task[Tensors]:
    """The sender's side, then the receiver's; nobody begins to receive before all have sent, so a
    sender that waits is a deadlock."""
    halfway = None
    if device in tensors:
        halfway = yield from send_edge(
            tensors[device], source, wanted, device=device, key=key, **keywords
        )  # type: ignore[arg-type]
    yield Reduce(
        group=tuple(devices_of(source, wanted)), tensor=torch.zeros(1), key=("all have sent", key)
    )
    if any(h.device == device for h in wanted):
        return (
            yield from receive_edge(
                halfway, source, wanted, device=device, key=key, dtype=torch.float64, **keywords
            )
        )  # type: ignore[arg-type]
    return ()


def same(found: dict[int, Tensors], wanted: dict[int, list[torch.Tensor]]) -> bool:
    got = {device: tensors for device, tensors in found.items() if tensors}
    return got.keys() == wanted.keys() and all(
        len(got[d]) == len(wanted[d])
        and all(torch.equal(a, b) for a, b in zip(got[d], wanted[d], strict=True))
        for d in wanted
    )


EVERYTHING: Box = (((0, SIDE),), ((0, SIDE),))


def boxed(device: int, *intervals: tuple[int, int], part: object = None) -> Holding:
    return Holding(device=device, box=tuple((one,) for one in intervals), part=part)  # type: ignore[arg-type]
