"""State of a layer between forward and backward, and the part of it that is recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from itertools import zip_longest

import torch

from shardwright.execute.device_state.offload_and_restore_part_of_tensor import (
    OffloadedTensor,
    offload_tensor,
    restore_tensor,
)
from shardwright.execute.device_state.operator_tokens_parameters_and_groups_on_device import (
    DeviceOfStage,
)
from shardwright.execute.numerics.base.operator_protocol import (
    Forward,
    Gradients,
    SavedTensors,
    Values,
)
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    shape_placeholder,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import Operator, OperatorKind

Inputs = Mapping[str, Gradients]
"""By name: a layer's input in the stream's layout, every extent on this device (None if it has
none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """One layer's computation for one microbatch on one device: its block, data and recomputation.

    Args:
        run, layer: numbers of the model's run and of the layer in it.
        data: the microbatch, by sequence, and its labels.
        key: prefix of its message keys, the same on all devices.
        scale: factor of every token's loss.
        again: operators that run again before backward.
        dropped: operators whose output is not kept.
        hosted: percent of operators' kept outputs that is offloaded to the host, by operator.
        forward_of: gives an operator's forward pass in serving, where a cache is kept; None =
            `numerics_of`.
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


_StatePlace = tuple[str, str, int, int]
"""(operator, field of `OperatorState`, input, extent) of a tensor."""


@dataclass(slots=True)
class OperatorState:
    """Saved tensors of an operator that ran forward.

    Args:
        saved: tensors for backward.
        inputs: inputs for running it again; empty where they are recomputed too.
        dropped_inputs: (input, extent) of dropped tensors that `saved` must get back.
        grads: gradients of its outputs, once known.
    """

    saved: SavedTensors
    inputs: tuple[Values, ...] = ()
    dropped_inputs: frozenset[tuple[int, int]] = frozenset()
    grads: Gradients = ()


@dataclass(slots=True)
class LayerState:
    """Saved state of a layer for one microbatch.

    It holds the operators that ran, or only the layer's inputs if the layer is recomputed.

    Args:
        sources: ids of the values that the layer read, by input name.
        inputs: the layer's inputs, if `only_inputs_kept`.
        is_incomplete: some operators must run again.
        offloaded: offloaded tensors, and the places where they are missing.
    """

    operator_states: dict[str, OperatorState] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=dict)
    only_inputs_kept: bool = False
    is_incomplete: bool = False
    offloaded: list[tuple[OffloadedTensor, list[_StatePlace]]] = field(default_factory=list)

    def keep_inputs_only(self, inputs: Inputs) -> None:
        """Drop the operators' saved tensors and keep the layer's inputs (full recomputation)."""
        self.operator_states.clear()
        self.inputs, self.only_inputs_kept = inputs, True


def kept_state(
    run: BlockRun, operator: Operator, inputs_given: tuple[Values, ...], saved: SavedTensors
) -> OperatorState:
    """State of an operator for backward: saved tensors less dropped ones, or inputs to rerun it."""
    names = () if operator.kind is OperatorKind.EMBEDDING else operator.inputs
    if operator.name in run.again:
        inputs = tuple(
            () if name in run.dropped else values
            for name, values in zip_longest(names, inputs_given)
        )
        return OperatorState(saved=SavedTensors(inputs=()), inputs=inputs)
    dropped = frozenset(
        (number, index)
        for number, name in enumerate(names)
        if name in run.dropped and name in operator.keeps
        for index, (saved_tensor, input_tensor) in enumerate(
            zip(saved.inputs[number], inputs_given[number], strict=True)
        )
        if saved_tensor is input_tensor and saved_tensor.is_floating_point()
    )
    return OperatorState(
        saved=with_tensors(
            saved, {place: shape_placeholder(inputs_given[place[0]][place[1]]) for place in dropped}
        ),
        dropped_inputs=dropped,
    )


def with_tensors(
    saved: SavedTensors, tensors: Mapping[tuple[int, int], torch.Tensor]
) -> SavedTensors:
    """A copy of the saved tensors with some inputs replaced, by (input, extent)."""
    if not tensors:
        return saved
    inputs = (
        tuple(tensors.get((n, i), tensor) for i, tensor in enumerate(values))
        for n, values in enumerate(saved.inputs)
    )
    return replace(saved, inputs=tuple(inputs))


def offload_state(run: BlockRun, state: LayerState) -> None:
    """Copy outputs kept of hosted operators, and tensors these saved, to the host by percent."""
    spots: dict[tuple[int, torch.Size], tuple[int, torch.Tensor, list[_StatePlace]]] = {}
    for operator in (
        o for o in run.block.operators if o.name in state.operator_states and run.hosted
    ):
        ran = state.operator_states[operator.name]
        percents = [run.hosted.get(name, 0) for name in operator.inputs]
        candidates = [
            ("saved", n, ran.saved.inputs[n], p)
            for n, p in enumerate(percents)
            if p and n < len(ran.saved.inputs)
        ]
        candidates += [
            ("inputs", n, ran.inputs[n], p)
            for n, p in enumerate(percents)
            if p and n < len(ran.inputs)
        ]
        if operator.name in run.hosted:
            candidates.append(("own", 0, ran.saved.own, run.hosted[operator.name]))
        for field_name, number, values, percent in candidates:
            for index, tensor in enumerate(values):
                if tensor.is_floating_point() and any(tensor.stride()):
                    place = tensor.data_ptr(), tensor.shape
                    spots.setdefault(place, (percent, tensor, []))[2].append(
                        (operator.name, field_name, number, index)
                    )
    for percent, tensor, places in spots.values():
        state.offloaded.append((offload_tensor(tensor, percent=percent), places))
        _set_tensor(state, places, shape_placeholder(tensor))


def restore_state(state: LayerState) -> None:
    """Copy a layer's offloaded tensors back to the device."""
    for offloaded, places in state.offloaded:
        _set_tensor(state, places, restore_tensor(offloaded))
    state.offloaded.clear()


def _set_tensor(state: LayerState, places: list[_StatePlace], tensor: torch.Tensor) -> None:
    """Replace a tensor of a layer's saved state in each of the operators' places that share it."""
    for name, field_name, number, index in places:
        ran = state.operator_states[name]
        if field_name == "saved":
            ran.saved = with_tensors(ran.saved, {(number, index): tensor})
        elif field_name == "own":
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
