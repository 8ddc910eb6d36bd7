"""One operator on several devices against the same operator on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.layout.tensor_layout import Indices, Interval
from tests.execute.lockstep import alone, local_weights, made_weights, place_of, rows_of, run

Cuts = Mapping[Dim, Interval]


def _interval(operator: Operator, extent: Extent, cuts: Cuts) -> Interval:
    """Elements of an input's extent that a device reads: whole where the operator does not read
    that dim."""
    if extent.dim not in {e.dim for e in operator.reads} or extent.dim not in cuts:
        return (0, extent.size)
    probe = place_of(replace(operator, writes=(*operator.writes, extent)), length=1, cuts=cuts)
    return probe.writes[-1]


def check_split(
    operator: Operator,
    producers: Sequence[Sequence[Extent]],
    cuts: Sequence[Cuts],
    *,
    positions: Sequence[Indices] = (),
    key_positions: Sequence[Indices] = (),
    memory: Sequence[Indices] = (),
    groups: Sequence[str] = (),
    integers: Mapping[int, torch.Tensor] | None = None,
    everywhere: Sequence[int] = (),
    length: int = 8,
    seed: int = 3,
) -> None:
    """Outputs, input gradients and weight gradients of devices with these cuts, put together, are
    those of one device.

    Args:
        producers: extents of each input.
        cuts: of each device.
        positions: of each device.
        groups: names of the group of all devices.
        integers: inputs that are ids or labels, by number.
        everywhere: those that every device has of all positions.
    """
    generator = torch.Generator().manual_seed(seed)
    integers = integers or {}

    def random(width: int, rows: int = length) -> torch.Tensor:
        return torch.randn((2, rows, width), generator=generator, dtype=torch.float64)

    inputs = [
        (integers[i],) if i in integers else tuple(random(e.size) for e in extents)
        for i, extents in enumerate(producers)
    ]
    weights = made_weights(operator, generator)
    more: dict[str, Any] = {"memory_length": length} if memory else {}
    whole = place_of(operator, length=length, **more)
    numerics = numerics_of(operator)
    outputs, saved = alone(numerics.forward(whole, tuple(inputs), weights))
    grads = tuple(torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in outputs)
    back = alone(numerics.input_grad(whole, saved, grads, weights))
    wgrads = alone(numerics.weight_grad(whole, saved, grads, weights))

    devices = range(len(cuts))
    own = list(positions) or [((0, length),)] * len(cuts)
    keys = list(memory) or own
    places = [
        place_of(
            operator,
            length=length,
            device=d,
            positions=own[d],
            cuts=cuts[d],
            groups=dict.fromkeys(groups, tuple(devices)),
            ring_positions=dict(enumerate(keys)),
            **(more | {"memory_positions": memory[d]} if memory else {}),
        )
        for d in devices
    ]
    boxes = [
        [[(own[d], _interval(operator, e, cuts[d])) for e in extents] for extents in producers]
        for d in devices
    ]
    if memory:
        boxes = [
            [b if i == 0 else [(memory[d], x) for _, x in b] for i, b in enumerate(boxes[d])]
            for d in devices
        ]
    local = [
        tuple(
            (v if i in everywhere else (v[0][:, rows_of(own[d])],))
            if i in integers
            else tuple(_part(t, *box) for t, box in zip(v, boxes[d][i], strict=True))
            for i, v in enumerate(inputs)
        )
        for d in devices
    ]
    slices = [local_weights(p, weights) for p in places]
    made = run({d: numerics.forward(places[d], local[d], slices[d]) for d in devices})
    written = {e.dim for e in operator.writes}
    summed = any(dim not in written and dim is not Dim.VOCAB for cut in cuts for dim in cut) or (
        Dim.VOCAB in cuts[0] and Dim.VOCAB not in written and operator.parameters
    )
    local_grads: list[tuple[torch.Tensor, ...]] = [() for _ in devices]
    for i, expected in enumerate(outputs):
        got, counts = torch.zeros_like(expected), torch.zeros_like(expected)
        for d in devices:
            _add(got, made[d][0][i], own[d], places[d].writes[i])
            _add(counts, torch.ones_like(made[d][0][i]), own[d], places[d].writes[i])
        assert (counts > 0).all()
        torch.testing.assert_close(
            got if summed else got / counts, expected, rtol=1e-12, atol=1e-12
        )
        # A value that several devices hold is given its gradient in parts, unless they hold parts
        # of its sum.
        whole_gradient = summed or operator.kind.value == "loss"
        share = grads[i] if whole_gradient else grads[i] / counts
        local_grads = [
            (*g, _part(share, own[d], places[d].writes[i])) for d, g in enumerate(local_grads)
        ]
    found = run(
        {d: numerics.input_grad(places[d], made[d][1], local_grads[d], slices[d]) for d in devices}
    )
    for i, expected_parts in enumerate(back):
        if expected_parts is None:
            assert all(found[d][i] is None for d in devices)
            continue
        for j, expected in enumerate(expected_parts):
            got = torch.zeros_like(expected)
            for d in devices:
                _add(got, found[d][i][j], *boxes[d][i][j])
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    wfound = run(
        {d: numerics.weight_grad(places[d], made[d][1], local_grads[d], slices[d]) for d in devices}
    )
    for name, expected in wgrads.items():
        got = torch.zeros_like(expected)
        for d in devices:
            view = got
            for dim, ((low, high),) in enumerate(places[d].parameters[name]):
                view = view.narrow(dim, low, high - low)
            view += wfound[d][name]
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def _part(whole: torch.Tensor, positions: Indices, elements: Interval) -> torch.Tensor:
    return whole[:, rows_of(positions), elements[0] : elements[1]]


def _add(whole: torch.Tensor, part: torch.Tensor, positions: Indices, elements: Interval) -> None:
    whole[:, rows_of(positions), elements[0] : elements[1]] += part
