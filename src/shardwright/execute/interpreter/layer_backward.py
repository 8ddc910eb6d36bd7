"""Input-gradient and weight-gradient passes of one layer on one device."""

from __future__ import annotations

import torch

from shardwright.execute.device_state.operator_tokens_parameters_and_groups_on_device import (
    operator_share,
)
from shardwright.execute.device_state.saved_layer_state import (
    BlockRun,
    Inputs,
    LayerState,
)
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore
from shardwright.execute.interpreter.earlier_slice_tensors import EarlierSlices
from shardwright.execute.interpreter.operator_inputs_on_device import (
    edges_of_input,
    output_exits,
    reads_batch,
    weights_on_device,
)
from shardwright.execute.interpreter.sum_router_counts_for_balancing_loss import Balance
from shardwright.execute.numerics.base.isolate_operator_of_pipeline_cut_block import is_stand_in
from shardwright.execute.numerics.base.operator_protocol import Gradients
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.experts.load_balancing_loss import balance_grad
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.redistribution.redistribute_one_tensor import with_key_prefix
from shardwright.execute.redistribution.tensor_layouts_at_producer_and_reader import (
    cotangent_at_maker,
    stays_on_device,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.model.find_routers_with_balancing_loss_or_biases import balanced_routers
from shardwright.model.ir.block import INPUT, MEMORY
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorKind
from shardwright.model.tensors_without_gradient import computes_input_gradient, without_gradient
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.block.routes_that_return_shared_key_gradients import CotangentRoute
from shardwright.program.layout.tensor_layout import Indices


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

    Tensors without a gradient (`model.tensors_without_gradient`) are left out.

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
        for index, layer_exit in enumerate(output_exits(run, last)):
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
            weights = weights_on_device(run, operator, place, store)
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
        if reads_batch(operator):
            continue
        for number, name in enumerate(operator.inputs):
            if name in constant:
                continue
            input_grads = grads_by_input[number] if ran is not None else None
            if stays_on_device(run.block, operator, name):
                _add_gradients(cotangents, name, input_grads or ())
                continue
            for edge in edges_of_input(run, operator, name):
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
    """Add the gradients of all readers of `name` to `cotangents`, in the layout of its maker.

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
    """Gradients of all outputs of an operator: zeros without a reader; for a loss, token factors.

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
        weights = weights_on_device(run, operator, place, store)
        weight_grads = yield from with_key_prefix(
            numerics_of(operator).weight_grad(place, ran.saved, ran.grads, weights), (*run.key, "W")
        )
        for parameter in operator.parameters:
            if parameter.trainable and parameter.name in weight_grads:
                box = place.parameters[parameter.name]
                store.add(
                    run.run, run.layer, operator, parameter, box, weight_grads[parameter.name]
                )
