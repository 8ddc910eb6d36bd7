"""State that a device keeps of a layer between forward and backward, and the part of it that is
recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from itertools import zip_longest

import torch

from shardwright.execute.device_state.activation_offload import (
    OffloadedTensor,
    offload_tensor,
    restore_tensor,
)
from shardwright.execute.device_state.operator_shares import DeviceOfStage
from shardwright.execute.numerics.base.local_tensors import shape_placeholder
from shardwright.execute.numerics.base.operator_protocol import (
    Forward,
    Gradients,
    SavedTensors,
    Values,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import Operator, OperatorKind

Inputs = Mapping[str, Gradients]
"""What a layer reads, by name, in the stream's layout: every extent on this device, None where it
has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """A layer at work.

    Args:
        run, layer: of the model.
        data: the microbatch by sequence, and its labels.
        key: of its communication, the same on all devices.
        scale: factor of every token's loss.
        again: operators that run again before backward.
        dropped: those whose output nobody keeps.
        hosted: percent of what is kept of operators' outputs that waits on the host, by operator.
        forward_of: how an operator runs forward where a cache is kept; None = as `numerics_of`
            says.
    """

    site: DeviceOfStage
    run: int
    layer: int
    block: Block
    data: Mapping[str, torch.Tensor]
    key: tuple[int, ...]
    scale: float
    again: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    hosted: Mapping[str, int] = field(default_factory=dict)
    forward_of: Callable[[Operator], Forward] | None = None


_Spot = tuple[str, str, int, int]
"""(operator, field of `OperatorState`, input, extent) of a tensor."""


@dataclass(slots=True)
class OperatorState:
    """An operator that ran.

    Args:
        saved: for backward.
        inputs: for running it again, empty where they are to be made again too.
        lacks: (input, extent) that `saved` is to get back.
        grads: of its outputs, once known.
    """

    saved: SavedTensors
    inputs: tuple[Values, ...] = ()
    lacks: frozenset[tuple[int, int]] = frozenset()
    grads: Gradients = ()


@dataclass(slots=True)
class LayerState:
    """Saved state of a layer for one microbatch: operators that ran; or only its inputs, if it is
    recomputed.

    Args:
        sources: whose outputs it read, by name.
        inputs: kept if `forgotten`.
        lacking: some operators are to run again.
        away: what waits on the host, and where it is missing.
    """

    ran: dict[str, OperatorState] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=dict)
    forgotten: bool = False
    lacking: bool = False
    away: list[tuple[OffloadedTensor, list[_Spot]]] = field(default_factory=list)

    def forget(self, inputs: Inputs) -> None:
        """Keep the inputs only."""
        self.ran.clear()
        self.inputs, self.forgotten = inputs, True


def kept_state(
    run: BlockRun, operator: Operator, given: tuple[Values, ...], saved: SavedTensors
) -> OperatorState:
    """The results of an operator that stay until backward, without those that are recomputed."""
    names = () if operator.kind is OperatorKind.EMBEDDING else operator.inputs
    if operator.name in run.again:
        inputs = tuple(
            () if name in run.dropped else values for name, values in zip_longest(names, given)
        )
        return OperatorState(saved=SavedTensors(inputs=()), inputs=inputs)
    lacks = frozenset(
        (number, index)
        for number, name in enumerate(names)
        if name in run.dropped and name in operator.keeps
        for index, (own, came) in enumerate(zip(saved.inputs[number], given[number], strict=True))
        if own is came and own.is_floating_point()
    )
    return OperatorState(
        saved=with_tensors(
            saved, {place: shape_placeholder(given[place[0]][place[1]]) for place in lacks}
        ),
        lacks=lacks,
    )


def with_tensors(
    saved: SavedTensors, tensors: Mapping[tuple[int, int], torch.Tensor]
) -> SavedTensors:
    """With other tensors at (input, extent)."""
    if not tensors:
        return saved
    inputs = (
        tuple(tensors.get((n, i), own) for i, own in enumerate(values))
        for n, values in enumerate(saved.inputs)
    )
    return replace(saved, inputs=tuple(inputs))


def offload_state(run: BlockRun, state: LayerState) -> None:
    """Copy to the host the kept outputs of hosted operators, and the tensors that these saved."""
    spots: dict[tuple[int, torch.Size], tuple[int, torch.Tensor, list[_Spot]]] = {}
    for operator in (o for o in run.block.operators if o.name in state.ran and run.hosted):
        ran = state.ran[operator.name]
        percents = [run.hosted.get(name, 0) for name in operator.inputs]
        named = [
            ("saved", n, ran.saved.inputs[n], p)
            for n, p in enumerate(percents)
            if p and n < len(ran.saved.inputs)
        ]
        named += [
            ("inputs", n, ran.inputs[n], p)
            for n, p in enumerate(percents)
            if p and n < len(ran.inputs)
        ]
        if operator.name in run.hosted:
            named.append(("own", 0, ran.saved.own, run.hosted[operator.name]))
        for what, number, values, percent in named:
            for index, tensor in enumerate(values):
                if tensor.is_floating_point() and any(tensor.stride()):
                    place = tensor.data_ptr(), tensor.shape
                    spots.setdefault(place, (percent, tensor, []))[2].append(
                        (operator.name, what, number, index)
                    )
    for percent, tensor, where in spots.values():
        state.away.append((offload_tensor(tensor, percent=percent), where))
        _put(state, where, shape_placeholder(tensor))


def restore_state(state: LayerState) -> None:
    """Copy the offloaded tensors back to the device."""
    for away, where in state.away:
        _put(state, where, restore_tensor(away))
    state.away.clear()


def _put(state: LayerState, where: list[_Spot], tensor: torch.Tensor) -> None:
    for name, what, number, index in where:
        ran = state.ran[name]
        if what == "saved":
            ran.saved = with_tensors(ran.saved, {(number, index): tensor})
        elif what == "own":
            ran.saved = replace(
                ran.saved, own=(*ran.saved.own[:index], tensor, *ran.saved.own[index + 1 :])
            )
        else:
            values = ran.inputs[number]
            ran.inputs = (
                *ran.inputs[:number],
                (*values[:index], tensor, *values[index + 1 :]),
                *ran.inputs[number + 1 :],
            )
