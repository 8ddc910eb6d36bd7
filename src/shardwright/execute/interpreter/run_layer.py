"""Forward and backward passes of one layer on one device, with the exchanges between operators."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import zip_longest

import torch

from shardwright.execute.device_state.operator_shares import operator_share
from shardwright.execute.device_state.parameter_store import ParameterStore
from shardwright.execute.device_state.saved_layer_state import (
    BlockRun,
    Inputs,
    LayerState,
    kept_state,
    with_tensors,
)
from shardwright.execute.interpreter.earlier_slice_tensors import EarlierSlices
from shardwright.execute.interpreter.expert_token_counts import Routed
from shardwright.execute.interpreter.load_balancing_counts import Balance
from shardwright.execute.numerics.attention.image_token_mask import image_run_numbers
from shardwright.execute.numerics.base.operator_protocol import Gradients, Values
from shardwright.execute.numerics.base.single_operator_block import is_expert_choice, is_stand_in
from shardwright.execute.numerics.base.tensor_helpers import index_tensor
from shardwright.execute.numerics.experts.load_balancing_loss import balance_grad
from shardwright.execute.numerics.images.insert_image_tokens import image_token_numbers
from shardwright.execute.numerics.images.text_and_image_positions import text_image_positions
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.redistribution.edge_layouts import (
    Edge,
    Exit,
    cotangent_at_maker,
    input_edges,
    layer_exits,
    stays_on_device,
)
from shardwright.execute.redistribution.redistribute_one_tensor import move_tensor, with_key_prefix
from shardwright.execute.transport.communication_requests import Task
from shardwright.execute.transport.operator_share import OperatorShare
from shardwright.model.balanced_routers import balanced_routers
from shardwright.model.blocks.vision_language import IMAGE
from shardwright.model.ir.block import INPUT, MEMORY, TEACHER, TEXT
from shardwright.model.ir.numerical_constants import TextRotary
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorKind
from shardwright.model.tensors_without_gradient import computes_input_gradient, without_gradient
from shardwright.program.block.operator_cut_protocol import is_routed
from shardwright.program.block.shared_key_gradients import CotangentRoute
from shardwright.program.layout.tensor_layout import Indices, Layout


def _edges(run: BlockRun, reader: Operator, name: str) -> tuple[Edge, ...]:
    """The layouts, at producer and reader, of every extent of an input of `reader`."""
    site = run.site
    return input_edges(
        site.cells,
        run.block,
        reader,
        name,
        base=site.base,
        length=site.length,
        memory_length=site.memory_length,
    )


def run_forward(
    run: BlockRun,
    reads: Inputs,
    store: ParameterStore,
    losses: dict[object, torch.Tensor],
    earlier_slices: EarlierSlices,
    *,
    routed: Routed | None = None,
) -> Task[tuple[Gradients, LayerState]]:
    """Run a layer forward: its output on this device (None without one), and its backward state.

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
            if _reads_batch(operator):
                continue
            if stays_on_device(run.block, operator, name):
                inputs.append(values[name])
            else:
                inputs.append(
                    (yield from _input_in_cells(run, operator, name, values, moved_extents, store))
                )
        if place is None or not ((place.samples and place.positions) or is_routed(operator)):
            values[operator.name] = _output_of_no_tokens(run, operator, values)
            continue
        inputs += [*_batch_input(run, operator, place, store), *_selection(run, operator, values)]
        operator_inputs = tuple(
            _input_tensors(run, operator, name, tensors, store)
            for name, tensors in zip_longest(operator.inputs, inputs, fillvalue="")
        )
        if run.site.whole:
            operator_inputs = earlier_slices.with_earlier_positions(
                operator, operator_inputs, part=len(run.site.earlier)
            )
        operator_outputs, saved = yield from with_key_prefix(
            (run.forward_of or numerics_of)(operator).forward(
                place, operator_inputs, _weights(run, operator, place, store)
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
    for index, layer_exit in enumerate(_exits(run, last)):
        key = ("exit", index) if index else ("exit",)
        outputs[index] = yield from _in_layout(
            run,
            store,
            outputs[index],
            layer_exit.made,
            layer_exit.streamed,
            key,
            numbers=is_expert_choice(layer_exit.extent),
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
                else (yield from _input_in_cells(run, operator, name, values, moved_extents, store))
            )
            new_inputs[number] = _input_tensors(run, operator, name, tensors, store)
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
            weights = _weights(run, operator, place, store)
            outputs, ran.saved = yield from with_key_prefix(
                numerics_of(operator).forward(place, operator_inputs, weights), (*run.key, "F")
            )
            values[operator.name], ran.inputs = outputs, ()
        else:
            ran.saved = with_tensors(
                ran.saved, {(n, i): new_inputs[n][i] for n, i in ran.dropped_inputs}
            )
    state.is_incomplete = False


def _output_of_no_tokens(
    run: BlockRun, operator: Operator, values: dict[str, tuple[torch.Tensor | None, ...]]
) -> tuple[torch.Tensor | None, ...]:
    """The output of an operator that is not on this device: empty rows for experts, else None."""
    maker = next((o for o in run.block.operators if o.name == operator.inputs[0]), None)
    if (
        is_routed(operator)
        and maker is not None
        and is_routed(maker)
        and values[maker.name][0] is not None
    ):
        return values[maker.name]
    return (None,) * len(operator.writes)


def _input_tensors(
    run: BlockRun,
    operator: Operator,
    name: str,
    tensors: tuple[torch.Tensor | None, ...] | str,
    store: ParameterStore,
) -> Values:
    """The tensors of one input of an operator; tensors of no rows if the device has no tokens."""
    assert not isinstance(tensors, str)
    dtype, on = store.precision.compute, store.on
    if is_routed(operator) and all(t is None for t in tensors):
        maker = next((o for o in run.block.operators if o.name == name), None)
        if maker is not None and is_stand_in(maker):
            kinds = (torch.int64 if is_expert_choice(e) else dtype for e in maker.writes)
            return tuple(
                torch.zeros((0, 0, e.size), dtype=kind, device=on)
                for e, kind in zip(maker.writes, kinds, strict=True)
            )
        if maker is not None and maker.kind is OperatorKind.ROUTE:
            width = maker.writes[0].size
            return (
                torch.zeros((0, 0, width), dtype=dtype, device=on),
                torch.zeros((0, 0, width), dtype=torch.int64, device=on),
            )
        return (torch.zeros((0, 0, operator.reads[0].size), dtype=dtype, device=on),)
    return tuple(t for t in tensors if t is not None)


def _exits(run: BlockRun, last: Operator) -> tuple[Exit, ...]:
    """The layouts of every extent of a layer's output, inside the layer and in the stream."""
    return layer_exits(run.site.cells, last, base=run.site.base, length=run.site.length)


def _input_in_cells(
    run: BlockRun,
    operator: Operator,
    name: str,
    values: dict[str, tuple[torch.Tensor | None, ...]],
    moved_extents: dict[object, torch.Tensor | None],
    store: ParameterStore,
) -> Task[tuple[torch.Tensor | None, ...]]:
    """All extents of one input, redistributed to the layouts that `operator` reads.

    An extent that several operators read in the same layout moves once: `moved_extents` keeps it.
    """
    tensors: list[torch.Tensor | None] = []
    for edge in _edges(run, operator, name):
        key = (name, edge.index, edge.wanted)
        if key not in moved_extents:
            move_key = ("F", operator.name, name, edge.index)
            value = values[name][edge.index]
            moved_extents[key] = yield from _in_layout(
                run,
                store,
                value,
                edge.made,
                edge.wanted,
                move_key,
                numbers=is_expert_choice(edge.extent),
            )
        tensors.append(moved_extents[key])
    return tuple(tensors)


def _reads_batch(operator: Operator) -> bool:
    """True if the operator reads only data of the batch."""
    return operator.kind is OperatorKind.EMBEDDING or operator.reads_features


def _batch_input(
    run: BlockRun, operator: Operator, place: OperatorShare, store: ParameterStore
) -> list[tuple[torch.Tensor | None, ...]]:
    """The input that an operator takes from the batch, for the device's samples and positions.

    Token ids of an embedding (a teacher's are those of the text), patches of an image tower,
    numbers of image tokens, rotary positions of a text with an image, labels of a loss; for
    attention with image masks, the image run of all positions.
    """
    if operator.reads_features:
        patches = _own_rows(run.data[run.block.sequence], place.samples, place.positions)
        spread = place.settings.image is not None and place.settings.image.spread
        return [((2 * (patches - 0.5) if spread else patches).to(store.precision.compute),)]
    if operator.merges:
        assert place.settings.image is not None, (
            "a model whose image tokens have no place is refused"
        )
        order = image_token_numbers(run.data[run.block.sequence], place.settings.image)
        return [(_own_rows(order, place.samples, place.positions).unsqueeze(-1),)]
    if operator.kind is OperatorKind.ROTARY and isinstance(place.settings.turns, TextRotary):
        at = text_image_positions(
            run.data[run.block.sequence], place.settings.image, patches=run.data[IMAGE].shape[1]
        )
        return [(_own_rows(at, place.samples, place.positions),)]
    if operator.sees_images:
        assert place.settings.image is not None, (
            "a model whose image tokens have no place is refused"
        )
        ids = run.data[run.block.sequence]
        return [
            (
                image_run_numbers(
                    ids.index_select(0, index_tensor(place.samples, like=ids)),
                    token=place.settings.image.token,
                ),
            )
        ]
    if operator.kind is OperatorKind.EMBEDDING:
        ids = run.data[TEXT if run.block.sequence == TEACHER else run.block.sequence]
        return [(_own_rows(ids, place.samples, place.positions).unsqueeze(-1),)]
    if operator.kind is OperatorKind.LOSS:
        return [(_own_rows(run.data["labels"], place.samples, place.positions).unsqueeze(-1),)]
    return []


def _selection(run: BlockRun, operator: Operator, values: dict[str, Gradients]) -> list[Values]:
    """The key selection of the block's indexer, as the extra input of an attention operator.

    Cuts that place the indexer on another device are rejected before a step.
    """
    if operator.kind is not OperatorKind.ATTENTION or operator.choice is None:
        return []
    maker = next(o for o in run.block.operators if o.kind is OperatorKind.INDEX)
    return [tuple(t for t in values[maker.name] if t is not None)]


def _own_rows(tensor: torch.Tensor, samples: Indices, positions: Indices) -> torch.Tensor:
    """The device's samples and positions of a (samples, positions, ...) tensor."""
    return tensor.index_select(0, index_tensor(samples, like=tensor)).index_select(
        1, index_tensor(positions, like=tensor)
    )


def _in_layout(
    run: BlockRun,
    store: ParameterStore,
    value: torch.Tensor | None,
    source: Layout,
    target: Layout,
    move_key: tuple[Hashable, ...],
    numbers: bool = False,
) -> Task[torch.Tensor | None]:
    """Redistribute one extent of an activation or a gradient to another layout.

    `numbers`: the extent holds integers.
    """
    device, dtype = (
        run.site.device + run.site.base,
        torch.int64 if numbers else store.precision.compute,
    )
    return (
        yield from move_tensor(
            value,
            source,
            target,
            device=device,
            key=(*run.key, *move_key),
            dtype=dtype,
            on=store.on,
        )
    )


def _weights(
    run: BlockRun, operator: Operator, place: OperatorShare, store: ParameterStore
) -> dict[str, torch.Tensor]:
    """The operator's parameters on this device, in the format of the computation."""
    return {
        p.name: store.use(run.run, run.layer, operator, p, place.parameters[p.name])
        for p in operator.parameters
    }


def run_backward(
    run: BlockRun,
    state: LayerState,
    gradients: Gradients,
    store: ParameterStore,
    earlier_slices: EarlierSlices,
    *,
    balance: Balance | None = None,
) -> Task[Inputs]:
    """Run a layer's input-gradient pass: gradients of the tensors that it read, on this device.

    Tensors without a gradient (`model.gradients`) are left out.

    Args:
        gradients: gradients of every extent of the layer's output.
        balance: counts and factor of the load-balancing loss; None: no such loss is computed.
    """
    constant = without_gradient(run.block)
    waiting: dict[tuple[str, int], dict[tuple[CotangentRoute, ...], list[torch.Tensor | None]]] = {}
    cotangents: dict[str, list[torch.Tensor | None]] = {}
    last = run.block.operators[-1]
    if last.kind is not OperatorKind.LOSS:
        cotangents[last.name] = list(gradients)
        for index, layer_exit in enumerate(_exits(run, last)):
            device, key = run.site.device + run.site.base, (*run.key, "enter", index)
            output_grad, dtype = gradients[index], store.precision.compute
            cotangents[last.name][index] = yield from cotangent_at_maker(
                output_grad, layer_exit.back, device=device, key=key, dtype=dtype, on=store.on
            )
    for operator in (o for o in reversed(run.block.operators) if o.name not in constant):
        yield from _sum_reader_gradients(run, operator.name, waiting, cotangents, store)
        if is_stand_in(operator):
            continue
        ran = state.operator_states.get(operator.name)
        grads_by_input: tuple[Gradients | None, ...] = ()
        if ran is not None:
            place = operator_share(run.site, operator)
            assert place is not None
            ran.grads = _output_grads(run, operator, place, cotangents, store)
        if ran is not None and computes_input_gradient(operator, constant):
            assert place is not None
            weights = _weights(run, operator, place, store)
            grads_by_input = yield from with_key_prefix(
                numerics_of(operator).input_grad(place, ran.saved, ran.grads, weights),
                (*run.key, "I"),
            )
            if (
                balance is not None
                and operator.experts is not None
                and operator in balanced_routers(run.block)
            ):
                grads_by_input = _with_balancing_gradient(
                    grads_by_input, ran.saved.inputs[0][0], balance, shape=operator.experts
                )
            if run.site.whole:
                grads_by_input = earlier_slices.own_position_grads(operator, grads_by_input)
        if _reads_batch(operator):
            continue
        for number, name in enumerate(operator.inputs):
            if name in constant:
                continue
            input_grads = grads_by_input[number] if ran is not None else None
            if stays_on_device(run.block, operator, name):
                _add_gradients(cotangents, name, input_grads or ())
                continue
            for edge in _edges(run, operator, name):
                if not edge.back:
                    continue
                extent_grad = input_grads[edge.index] if input_grads is not None else None
                sums = waiting.setdefault((name, edge.index), {}).setdefault(edge.back, [])
                sums.append(extent_grad)
    yield from _sum_reader_gradients(run, INPUT, waiting, cotangents, store)
    yield from _sum_reader_gradients(run, MEMORY, waiting, cotangents, store)
    return {name: tuple(cotangents.get(name, ())) for name in state.sources}


def _with_balancing_gradient(
    backs: tuple[Gradients | None, ...],
    logits: torch.Tensor,
    balance: Balance,
    *,
    shape: ExpertShape,
) -> tuple[Gradients | None, ...]:
    """Input gradients of a router, with the load-balancing loss's gradient of its logits added."""
    (logit_grad, *other_grads), *rest = (grads or () for grads in backs)
    assert logit_grad is not None, "logits have a gradient"
    return (
        (
            logit_grad + balance_grad(logits, balance.total, shape=shape, factor=balance.factor),
            *other_grads,
        ),
        *rest,
    )


def _add_gradients(
    cotangents: dict[str, list[torch.Tensor | None]], name: str, parts: Gradients
) -> None:
    """Add gradients of a value to those of its other readers, all in the value's own layout."""
    totals = cotangents.setdefault(name, [])
    totals += [None] * (len(parts) - len(totals))
    for index, part in enumerate(parts):
        if part is not None:
            present = totals[index]
            totals[index] = part if present is None else present + part


def _sum_reader_gradients(
    run: BlockRun,
    name: str,
    waiting: dict[tuple[str, int], dict[tuple[CotangentRoute, ...], list[torch.Tensor | None]]],
    cotangents: dict[str, list[torch.Tensor | None]],
    store: ParameterStore,
) -> Task[None]:
    """Sum the gradients of all readers of `name` in the layout in which the value was made.

    Gradients that return from the same layout are added first and move together.
    """
    indices = sorted(index for totals, index in waiting if totals == name)
    for index in indices:
        total: torch.Tensor | None = None
        for number, (routes, parts) in enumerate(waiting.pop((name, index)).items()):
            local_parts = [p for p in parts if p is not None]
            value = sum(local_parts[1:], local_parts[0]) if local_parts else None
            device, key = run.site.device + run.site.base, (*run.key, "B", name, index, number)
            value = yield from cotangent_at_maker(
                value, routes, device=device, key=key, dtype=store.precision.compute, on=store.on
            )
            if value is not None:
                total = value if total is None else total + value
        totals = cotangents.setdefault(name, [])
        totals += [None] * (index + 1 - len(totals))
        if total is not None:
            totals[index] = total if totals[index] is None else totals[index] + total


def _output_grads(
    run: BlockRun,
    operator: Operator,
    place: OperatorShare,
    cotangents: dict[str, list[torch.Tensor | None]],
    store: ParameterStore,
) -> Gradients:
    """Gradients of all outputs of an operator, zeros where no operator reads them.

    For a loss, the factor of each token.
    """
    if is_routed(operator) or (operator.kind is OperatorKind.ROUTE and len(operator.writes) == 1):
        return tuple(cotangents.get(operator.name, ()))
    shape = (_count(place.samples), _count(place.positions))
    dtype, on = store.precision.compute, store.on
    if operator.kind is OperatorKind.LOSS:
        return (torch.full((*shape, 1), run.scale, dtype=store.precision.statistics, device=on),)
    totals = cotangents.get(operator.name, [])
    grads = []
    for index, (low, high) in enumerate(place.writes):
        value = totals[index] if index < len(totals) else None
        grads.append(
            torch.zeros((*shape, high - low), dtype=dtype, device=on) if value is None else value
        )
    return tuple(grads)


def _count(indices: Indices) -> int:
    """Number of indices in a list of ranges."""
    return sum(b - a for a, b in indices)


def run_weights(run: BlockRun, state: LayerState, store: ParameterStore) -> Task[None]:
    """Compute every operator's weight gradients and add them to the device's gradients."""
    for operator in reversed(run.block.operators):
        ran = state.operator_states.get(operator.name)
        if ran is None or not any(p.trainable for p in operator.parameters):
            continue
        place = operator_share(run.site, operator)
        assert place is not None
        weights = _weights(run, operator, place, store)
        weight_grads = yield from with_key_prefix(
            numerics_of(operator).weight_grad(place, ran.saved, ran.grads, weights), (*run.key, "W")
        )
        for parameter in operator.parameters:
            if parameter.trainable and parameter.name in weight_grads:
                box = place.parameters[parameter.name]
                store.add(
                    run.run, run.layer, operator, parameter, box, weight_grads[parameter.name]
                )
