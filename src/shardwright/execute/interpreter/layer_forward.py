"""Forward pass and recomputation of one layer on one device."""

from __future__ import annotations

from itertools import zip_longest

import torch

from shardwright.execute.device_state.operator_tokens_parameters_and_groups_on_device import (
    operator_share,
)
from shardwright.execute.device_state.saved_layer_state import (
    BlockRun,
    Inputs,
    LayerState,
    kept_state,
    with_tensors,
)
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore
from shardwright.execute.interpreter.count_tokens_per_expert_for_bias import Routed
from shardwright.execute.interpreter.earlier_slice_tensors import EarlierSlices
from shardwright.execute.interpreter.operator_inputs_on_device import (
    batch_input,
    in_layout,
    input_in_cells,
    input_tensors,
    key_selection,
    output_exits,
    output_of_no_tokens,
    reads_batch,
    weights_on_device,
)
from shardwright.execute.numerics.base.isolate_operator_of_pipeline_cut_block import (
    is_expert_choice,
)
from shardwright.execute.numerics.base.operator_protocol import Gradients, Values
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.redistribution.redistribute_one_tensor import with_key_prefix
from shardwright.execute.redistribution.tensor_layouts_at_producer_and_reader import (
    stays_on_device,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.model.ir.block import INPUT, MEMORY
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.tensors_without_gradient import without_gradient
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed


def run_forward(
    run: BlockRun,
    reads: Inputs,
    store: ParameterStore,
    losses: dict[object, torch.Tensor],
    earlier_slices: EarlierSlices,
    *,
    routed: Routed | None = None,
) -> Task[tuple[Gradients, LayerState]]:
    """Run a layer forward: (output extents, None if not here; backward state); `losses` is filled.

    Args:
        reads: outputs of other layers, or of other operators of a block that a pipeline cut
            divides.
        earlier_slices: keys, values and states of the microbatch's earlier slices.
        routed: receives the logits and the choices of every router.
    """
    constant = without_gradient(run.block)
    state = LayerState(is_incomplete=bool(run.again))
    values: dict[str, Gradients] = {INPUT: (None,), MEMORY: (None,), **reads}
    moved_extents: dict[object, torch.Tensor | None] = {}
    for operator in (o for o in run.block.operators if o.name not in reads):
        place = operator_share(run.site, operator)
        inputs: list[tuple[torch.Tensor | None, ...]] = []
        for name in operator.inputs:
            if reads_batch(operator):
                continue
            if stays_on_device(run.block, operator, name):
                inputs.append(values[name])
            else:
                inputs.append(
                    (yield from input_in_cells(run, operator, name, values, moved_extents, store))
                )
        if place is None or not ((place.samples and place.positions) or is_routed(operator)):
            values[operator.name] = output_of_no_tokens(run, operator, values)
            continue
        inputs += [*batch_input(run, operator, place, store), *key_selection(run, operator, values)]
        operator_inputs = tuple(
            input_tensors(run, operator, name, tensors, store)
            for name, tensors in zip_longest(operator.inputs, inputs, fillvalue="")
        )
        if run.site.whole:
            operator_inputs = earlier_slices.with_earlier_positions(
                operator, operator_inputs, part=len(run.site.earlier)
            )
        operator_outputs, saved = yield from with_key_prefix(
            (run.forward_of or numerics_of)(operator).forward(
                place, operator_inputs, weights_on_device(run, operator, place, store)
            ),
            (*run.key, "F"),
        )
        if operator.name not in constant:
            state.operator_states[operator.name] = kept_state(run, operator, operator_inputs, saved)
        values[operator.name] = operator_outputs
        if routed is not None and operator.kind is OperatorKind.ROUTE:
            routed[operator.name] = (operator_inputs[0][0], operator_outputs[1])
        if operator.kind is OperatorKind.LOSS:
            losses[run.key[0], run.run, run.key[2], place.samples, place.positions] = (
                operator_outputs[0].sum()
            )
    last = run.block.operators[-1]
    if last.kind is OperatorKind.LOSS:
        return (None,), state
    outputs = list(values[last.name])
    for index, layer_exit in enumerate(output_exits(run, last)):
        key = ("exit", index) if index else ("exit",)
        outputs[index] = yield from in_layout(
            run,
            store,
            outputs[index],
            layer_exit.made,
            layer_exit.streamed,
            key,
            holds_integers=is_expert_choice(layer_exit.extent),
        )
    return tuple(outputs), state


def recompute(
    run: BlockRun, state: LayerState, store: ParameterStore, earlier_slices: EarlierSlices
) -> Task[None]:
    """Run again the operators of the layer whose outputs or saved tensors were not kept."""
    values: dict[str, tuple[torch.Tensor | None, ...]] = {}
    moved_extents: dict[object, torch.Tensor | None] = {}
    for operator in run.block.operators:
        runs_again = operator.name in run.again
        missing_inputs = {
            n: i
            for i, n in enumerate(operator.inputs)
            if n in run.dropped and (runs_again or n in operator.keeps)
        }
        new_inputs: dict[int, Values] = {}
        for name, number in missing_inputs.items():
            passed = stays_on_device(run.block, operator, name)
            tensors = (
                values[name]
                if passed
                else (yield from input_in_cells(run, operator, name, values, moved_extents, store))
            )
            new_inputs[number] = input_tensors(run, operator, name, tensors, store)
        ran = state.operator_states.get(operator.name)
        if ran is None:
            values[operator.name] = (None,) * len(operator.writes)
            continue
        if new_inputs and run.site.whole:
            operator_inputs = tuple(
                new_inputs.get(i, earlier_inputs)
                for i, earlier_inputs in enumerate(ran.inputs or ran.saved.inputs)
            )
            longer = earlier_slices.with_earlier_positions(
                operator, operator_inputs, part=len(run.site.earlier)
            )
            new_inputs = {number: longer[number] for number in new_inputs}
        if runs_again:
            place = operator_share(run.site, operator)
            assert place is not None
            operator_inputs = tuple(
                new_inputs.get(i, earlier_inputs) for i, earlier_inputs in enumerate(ran.inputs)
            )
            weights = weights_on_device(run, operator, place, store)
            outputs, ran.saved = yield from with_key_prefix(
                numerics_of(operator).forward(place, operator_inputs, weights), (*run.key, "F")
            )
            values[operator.name], ran.inputs = outputs, ()
        else:
            ran.saved = with_tensors(
                ran.saved, {(n, i): new_inputs[n][i] for n, i in ran.dropped_inputs}
            )
    state.is_incomplete = False
