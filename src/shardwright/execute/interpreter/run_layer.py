"""One layer on one device: its operators forward, back, and their weights' gradients, with what
moves between them.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import zip_longest

import torch

from shardwright.execute.device_state.device_parameters import ParameterStore
from shardwright.execute.device_state.layer_state import BlockRun, Inputs, LayerState, changed, kept
from shardwright.execute.device_state.operator_shares import place_of
from shardwright.execute.interpreter.earlier_slices import EarlierSlices
from shardwright.execute.interpreter.expert_loads import Routed
from shardwright.execute.interpreter.load_balancing_counts import Balance
from shardwright.execute.numerics.attention.image_token_mask import image_run_numbers
from shardwright.execute.numerics.base.cut_operator import is_expert_choice, is_stand_in
from shardwright.execute.numerics.base.local_tensors import index_tensor
from shardwright.execute.numerics.base.operator_protocol import Gradients, Values
from shardwright.execute.numerics.experts.load_balancing_loss import balance_grad
from shardwright.execute.numerics.images.insert_image_tokens import image_token_numbers
from shardwright.execute.numerics.images.text_and_image_positions import text_image_positions
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.redistribution.edge_layouts import (
    Edge,
    Exit,
    edges,
    exits,
    given_back,
    is_passed,
)
from shardwright.execute.redistribution.move_tensor import moved, scoped
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.backward_reach import computes_input_gradient, without_gradient
from shardwright.model.blocks.vision_language import IMAGE
from shardwright.model.ir.block import INPUT, MEMORY, TEACHER, TEXT
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorKind
from shardwright.model.ir.operator_constants import TextRotary
from shardwright.model.router_balancing import balanced_routers
from shardwright.program.block.operator_placement import is_routed
from shardwright.program.block.shared_key_cotangents import CotangentRoute
from shardwright.program.layout.tensor_layout import Indices, Layout


def _edges(run: BlockRun, reader: Operator, name: str) -> tuple[Edge, ...]:
    """The edge of every extent of an input of `reader`."""
    site = run.site
    return edges(
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
    past: EarlierSlices,
    *,
    routed: Routed | None = None,
) -> Task[tuple[Gradients, LayerState]]:
    """The layer's output on this device (None where it has none), and what its backward needs.

    Args:
        reads: what other layers, or other operators of a block that a cut lies in, made.
        past: keys of the microbatch's earlier slices.
        routed: gets the logits and the choices of every router.
    """
    constant = without_gradient(run.block)
    state = LayerState(lacking=bool(run.again))
    values: dict[str, Gradients] = {INPUT: (None,), MEMORY: (None,), **reads}
    there: dict[object, torch.Tensor | None] = {}
    for operator in (o for o in run.block.operators if o.name not in reads):
        place = place_of(run.site, operator)
        inputs: list[tuple[torch.Tensor | None, ...]] = []
        for name in operator.inputs:
            if _reads_data(operator):
                continue
            if is_passed(run.block, operator, name):
                inputs.append(values[name])
            else:
                inputs.append((yield from _brought(run, operator, name, values, there, store)))
        if place is None or not ((place.samples and place.positions) or is_routed(operator)):
            values[operator.name] = _nothing(run, operator, values)
            continue
        inputs += [*_data(run, operator, place, store), *_selection(run, operator, values)]
        given = tuple(
            _given(run, operator, name, one, store)
            for name, one in zip_longest(operator.inputs, inputs, fillvalue="")
        )
        if run.site.whole:
            given = past.longer(operator, given, part=len(run.site.earlier))
        made, saved = yield from scoped(
            (run.forward_of or numerics_of)(operator).forward(
                place, given, _weights(run, operator, place, store)
            ),
            (*run.key, "F"),
        )
        if operator.name not in constant:
            state.ran[operator.name] = kept(run, operator, given, saved)
        values[operator.name] = made
        if routed is not None and operator.kind is OperatorKind.ROUTE:
            routed[operator.name] = (given[0][0], made[1])
        if operator.kind is OperatorKind.LOSS:
            losses[run.key[0], run.run, run.key[2], place.samples, place.positions] = made[0].sum()
    last = run.block.operators[-1]
    if last.kind is OperatorKind.LOSS:
        return (None,), state
    outputs = list(values[last.name])
    for index, way in enumerate(_exits(run, last)):
        key = ("exit", index) if index else ("exit",)
        outputs[index] = yield from _moved(
            run,
            store,
            outputs[index],
            way.made,
            way.streamed,
            key,
            numbers=is_expert_choice(way.extent),
        )
    return tuple(outputs), state


def run_again(
    run: BlockRun, state: LayerState, store: ParameterStore, past: EarlierSlices
) -> Task[None]:
    """Run again the operators of the layer whose outputs, or what they save, were not kept; their
    readers have them back.
    """
    values: dict[str, tuple[torch.Tensor | None, ...]] = {}
    there: dict[object, torch.Tensor | None] = {}
    for operator in run.block.operators:
        again = operator.name in run.again
        made = {
            n: i
            for i, n in enumerate(operator.inputs)
            if n in run.dropped and (again or n in operator.keeps)
        }
        fresh: dict[int, Values] = {}
        for name, number in made.items():
            passed = is_passed(run.block, operator, name)
            found = (
                values[name]
                if passed
                else (yield from _brought(run, operator, name, values, there, store))
            )
            fresh[number] = _given(run, operator, name, found, store)
        ran = state.ran.get(operator.name)
        if ran is None:
            values[operator.name] = (None,) * len(operator.writes)
            continue
        if fresh and run.site.whole:
            given = tuple(
                fresh.get(i, came) for i, came in enumerate(ran.inputs or ran.saved.inputs)
            )
            longer = past.longer(operator, given, part=len(run.site.earlier))
            fresh = {number: longer[number] for number in fresh}
        if again:
            place = place_of(run.site, operator)
            assert place is not None
            given = tuple(fresh.get(i, came) for i, came in enumerate(ran.inputs))
            weights = _weights(run, operator, place, store)
            outputs, ran.saved = yield from scoped(
                numerics_of(operator).forward(place, given, weights), (*run.key, "F")
            )
            values[operator.name], ran.inputs = outputs, ()
        else:
            ran.saved = changed(ran.saved, {(n, i): fresh[n][i] for n, i in ran.lacks})
    state.lacking = False


def _nothing(
    run: BlockRun, operator: Operator, values: dict[str, tuple[torch.Tensor | None, ...]]
) -> tuple[torch.Tensor | None, ...]:
    """The output of an operator that the device lacks: no rows for experts that are elsewhere."""
    maker = next((o for o in run.block.operators if o.name == operator.inputs[0]), None)
    if (
        is_routed(operator)
        and maker is not None
        and is_routed(maker)
        and values[maker.name][0] is not None
    ):
        return values[maker.name]
    return (None,) * len(operator.writes)


def _given(
    run: BlockRun,
    operator: Operator,
    name: str,
    found: tuple[torch.Tensor | None, ...] | str,
    store: ParameterStore,
) -> Values:
    """Tensors of an input; of tokens that the device does not hold, none."""
    assert not isinstance(found, str)
    dtype, on = store.precision.compute, store.on
    if is_routed(operator) and all(t is None for t in found):
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
    return tuple(t for t in found if t is not None)


def _exits(run: BlockRun, last: Operator) -> tuple[Exit, ...]:
    return exits(run.site.cells, last, base=run.site.base, length=run.site.length)


def _brought(
    run: BlockRun,
    operator: Operator,
    name: str,
    values: dict[str, tuple[torch.Tensor | None, ...]],
    there: dict[object, torch.Tensor | None],
    store: ParameterStore,
) -> Task[tuple[torch.Tensor | None, ...]]:
    """All extents of one input in the cells of `operator`; an extent that several operators want
    alike moves once.
    """
    found: list[torch.Tensor | None] = []
    for edge in _edges(run, operator, name):
        key = (name, edge.index, edge.wanted)
        if key not in there:
            what = ("F", operator.name, name, edge.index)
            value = values[name][edge.index]
            there[key] = yield from _moved(
                run,
                store,
                value,
                edge.made,
                edge.wanted,
                what,
                numbers=is_expert_choice(edge.extent),
            )
        found.append(there[key])
    return tuple(found)


def _reads_data(operator: Operator) -> bool:
    """Its only input is of the batch."""
    return operator.kind is OperatorKind.EMBEDDING or operator.reads_features


def _data(
    run: BlockRun, operator: Operator, place: OperatorShare, store: ParameterStore
) -> list[tuple[torch.Tensor | None, ...]]:
    """Token ids of a lookup (a teacher's are those of the text), patches of a tower, numbers of
    image tokens, what a text with an image turns by, labels of a loss; of a core that sees images,
    the runs of all positions.
    """
    if operator.reads_features:
        patches = _rows(run.data[run.block.sequence], place.samples, place.positions)
        spread = place.settings.image is not None and place.settings.image.spread
        return [((2 * (patches - 0.5) if spread else patches).to(store.precision.compute),)]
    if operator.merges:
        assert place.settings.image is not None, (
            "a model whose image tokens have no place is refused"
        )
        order = image_token_numbers(run.data[run.block.sequence], place.settings.image)
        return [(_rows(order, place.samples, place.positions).unsqueeze(-1),)]
    if operator.kind is OperatorKind.ROTARY and isinstance(place.settings.turns, TextRotary):
        at = text_image_positions(
            run.data[run.block.sequence], place.settings.image, patches=run.data[IMAGE].shape[1]
        )
        return [(_rows(at, place.samples, place.positions),)]
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
        return [(_rows(ids, place.samples, place.positions).unsqueeze(-1),)]
    if operator.kind is OperatorKind.LOSS:
        return [(_rows(run.data["labels"], place.samples, place.positions).unsqueeze(-1),)]
    return []


def _selection(run: BlockRun, operator: Operator, values: dict[str, Gradients]) -> list[Values]:
    """The key selection of the block's indexer for a core's queries. Cuts that place it on another
    device are refused before a step.
    """
    if operator.kind is not OperatorKind.ATTENTION or operator.choice is None:
        return []
    maker = next(o for o in run.block.operators if o.kind is OperatorKind.INDEX)
    return [tuple(t for t in values[maker.name] if t is not None)]


def _rows(whole: torch.Tensor, samples: Indices, positions: Indices) -> torch.Tensor:
    """The device's part of (samples, positions)."""
    return whole.index_select(0, index_tensor(samples, like=whole)).index_select(
        1, index_tensor(positions, like=whole)
    )


def _moved(
    run: BlockRun,
    store: ParameterStore,
    value: torch.Tensor | None,
    source: Layout,
    wanted: Layout,
    what: tuple[Hashable, ...],
    numbers: bool = False,
) -> Task[torch.Tensor | None]:
    """An activation or its gradient in another layout; `index_tensor`: whole ones."""
    device, dtype = (
        run.site.device + run.site.base,
        torch.int64 if numbers else store.precision.compute,
    )
    return (
        yield from moved(
            value, source, wanted, device=device, key=(*run.key, *what), dtype=dtype, on=store.on
        )
    )


def _weights(
    run: BlockRun, operator: Operator, place: OperatorShare, store: ParameterStore
) -> dict[str, torch.Tensor]:
    return {
        p.name: store.use(run.run, run.layer, operator, p, place.parameters[p.name])
        for p in operator.parameters
    }


def run_backward(
    run: BlockRun,
    state: LayerState,
    gradients: Gradients,
    store: ParameterStore,
    past: EarlierSlices,
    *,
    balance: Balance | None = None,
) -> Task[Inputs]:
    """Cotangents of what the layer read, on this device; nothing of tensors without a gradient
    (`model.gradients`).

    Args:
        gradients: of every extent of its output.
        balance: of the load-balancing loss; None: there is none.
    """
    constant = without_gradient(run.block)
    waiting: dict[tuple[str, int], dict[tuple[CotangentRoute, ...], list[torch.Tensor | None]]] = {}
    cotangents: dict[str, list[torch.Tensor | None]] = {}
    last = run.block.operators[-1]
    if last.kind is not OperatorKind.LOSS:
        cotangents[last.name] = list(gradients)
        for index, way in enumerate(_exits(run, last)):
            device, key = run.site.device + run.site.base, (*run.key, "enter", index)
            here, dtype = gradients[index], store.precision.compute
            cotangents[last.name][index] = yield from given_back(
                here, way.back, device=device, key=key, dtype=dtype, on=store.on
            )
    for operator in (o for o in reversed(run.block.operators) if o.name not in constant):
        yield from _collect(run, operator.name, waiting, cotangents, store)
        if is_stand_in(operator):
            continue
        ran = state.ran.get(operator.name)
        backs: tuple[Gradients | None, ...] = ()
        if ran is not None:
            place = place_of(run.site, operator)
            assert place is not None
            ran.grads = _output_grads(run, operator, place, cotangents, store)
        if ran is not None and computes_input_gradient(operator, constant):
            assert place is not None
            weights = _weights(run, operator, place, store)
            backs = yield from scoped(
                numerics_of(operator).input_grad(place, ran.saved, ran.grads, weights),
                (*run.key, "I"),
            )
            if (
                balance is not None
                and operator.experts is not None
                and operator in balanced_routers(run.block)
            ):
                backs = _balanced(backs, ran.saved.inputs[0][0], balance, shape=operator.experts)
            if run.site.whole:
                backs = past.shorter(operator, backs)
        if _reads_data(operator):
            continue
        for number, name in enumerate(operator.inputs):
            if name in constant:
                continue
            back = backs[number] if ran is not None else None
            if is_passed(run.block, operator, name):
                _keep(cotangents, name, back or ())
                continue
            for edge in _edges(run, operator, name):
                if not edge.back:
                    continue
                part = back[edge.index] if back is not None else None
                sums = waiting.setdefault((name, edge.index), {}).setdefault(edge.back, [])
                sums.append(part)
    yield from _collect(run, INPUT, waiting, cotangents, store)
    yield from _collect(run, MEMORY, waiting, cotangents, store)
    return {name: tuple(cotangents.get(name, ())) for name in state.sources}


def _balanced(
    backs: tuple[Gradients | None, ...],
    logits: torch.Tensor,
    balance: Balance,
    *,
    shape: ExpertShape,
) -> tuple[Gradients | None, ...]:
    """The gradient of a router's logits, with that of the load-balancing loss."""
    (own, *others), *rest = (one or () for one in backs)
    assert own is not None, "logits have a gradient"
    return (
        (own + balance_grad(logits, balance.total, shape=shape, factor=balance.factor), *others),
        *rest,
    )


def _keep(cotangents: dict[str, list[torch.Tensor | None]], name: str, parts: Gradients) -> None:
    """Add gradients of a value that did not move."""
    known = cotangents.setdefault(name, [])
    known += [None] * (len(parts) - len(known))
    for index, part in enumerate(parts):
        if part is not None:
            before = known[index]
            known[index] = part if before is None else before + part


def _collect(
    run: BlockRun,
    name: str,
    waiting: dict[tuple[str, int], dict[tuple[CotangentRoute, ...], list[torch.Tensor | None]]],
    cotangents: dict[str, list[torch.Tensor | None]],
    store: ParameterStore,
) -> Task[None]:
    """Sum what the readers of `name` return where it was made; what returns in one layout moves
    together.
    """
    indices = sorted(index for known, index in waiting if known == name)
    for index in indices:
        total: torch.Tensor | None = None
        for number, (back, parts) in enumerate(waiting.pop((name, index)).items()):
            here = [p for p in parts if p is not None]
            value = sum(here[1:], here[0]) if here else None
            device, key = run.site.device + run.site.base, (*run.key, "B", name, index, number)
            value = yield from given_back(
                value, back, device=device, key=key, dtype=store.precision.compute, on=store.on
            )
            if value is not None:
                total = value if total is None else total + value
        known = cotangents.setdefault(name, [])
        known += [None] * (index + 1 - len(known))
        if total is not None:
            known[index] = total if known[index] is None else known[index] + total


def _output_grads(
    run: BlockRun,
    operator: Operator,
    place: OperatorShare,
    cotangents: dict[str, list[torch.Tensor | None]],
    store: ParameterStore,
) -> Gradients:
    """Cotangents of all extents that an operator wrote, zeros where nobody read; of a loss, the
    factor of each token.
    """
    if is_routed(operator) or (operator.kind is OperatorKind.ROUTE and len(operator.writes) == 1):
        return tuple(cotangents.get(operator.name, ()))
    shape = (_count(place.samples), _count(place.positions))
    dtype, on = store.precision.compute, store.on
    if operator.kind is OperatorKind.LOSS:
        return (torch.full((*shape, 1), run.scale, dtype=store.precision.statistics, device=on),)
    known = cotangents.get(operator.name, [])
    found = []
    for index, (low, high) in enumerate(place.writes):
        value = known[index] if index < len(known) else None
        found.append(
            torch.zeros((*shape, high - low), dtype=dtype, device=on) if value is None else value
        )
    return tuple(found)


def _count(indices: Indices) -> int:
    return sum(b - a for a, b in indices)


def run_weights(run: BlockRun, state: LayerState, store: ParameterStore) -> Task[None]:
    """Add every operator's weight gradients to the device's own."""
    for operator in reversed(run.block.operators):
        ran = state.ran.get(operator.name)
        if ran is None or not any(p.trainable for p in operator.parameters):
            continue
        place = place_of(run.site, operator)
        assert place is not None
        weights = _weights(run, operator, place, store)
        found = yield from scoped(
            numerics_of(operator).weight_grad(place, ran.saved, ran.grads, weights), (*run.key, "W")
        )
        for parameter in operator.parameters:
            if parameter.trainable and parameter.name in found:
                box = place.parameters[parameter.name]
                store.add(run.run, run.layer, operator, parameter, box, found[parameter.name])
