"""Inputs of a layer's operators on one device: other operators' outputs, the batch, parameters."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from shardwright.execute.device_state.saved_layer_state import (
    BlockRun,
)
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore
from shardwright.execute.numerics.attention.image_token_mask import image_run_numbers
from shardwright.execute.numerics.base.isolate_operator_of_pipeline_cut_block import (
    is_expert_choice,
    is_stand_in,
)
from shardwright.execute.numerics.base.operator_protocol import Gradients, Values
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.execute.numerics.images.insert_image_tokens import image_token_numbers
from shardwright.execute.numerics.images.text_and_image_positions import text_image_positions
from shardwright.execute.redistribution.redistribute_one_tensor import move_tensor
from shardwright.execute.redistribution.tensor_layouts_at_producer_and_reader import (
    Edge,
    Exit,
    input_edges,
    layer_exits,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.block import TEACHER, TEXT
from shardwright.model.ir.numerical_constants import TextRotary
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.layout.tensor_layout import Indices, Layout


def edges_of_input(run: BlockRun, reader: Operator, name: str) -> tuple[Edge, ...]:
    """The layouts, at producer and reader, of every extent of an input of `reader`."""
    site = run.site
    return input_edges(
        site.cells,
        run.block,
        reader,
        name,
        first_device=site.base,
        length=site.length,
        memory_length=site.memory_length,
    )


def output_of_no_tokens(
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


def input_tensors(
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


def output_exits(run: BlockRun, last: Operator) -> tuple[Exit, ...]:
    """The layouts of every extent of a layer's output, inside the layer and in the stream."""
    return layer_exits(run.site.cells, last, first_device=run.site.base, length=run.site.length)


def input_in_cells(
    run: BlockRun,
    operator: Operator,
    name: str,
    values: dict[str, tuple[torch.Tensor | None, ...]],
    moved_extents: dict[object, torch.Tensor | None],
    store: ParameterStore,
) -> Task[tuple[torch.Tensor | None, ...]]:
    """Tensors of one input of `operator`, redistributed to the layouts that the operator reads.

    An extent that several operators read in the same layout moves once: `moved_extents` keeps it.
    """
    tensors: list[torch.Tensor | None] = []
    for edge in edges_of_input(run, operator, name):
        key = (name, edge.index, edge.wanted)
        if key not in moved_extents:
            move_key = ("F", operator.name, name, edge.index)
            value = values[name][edge.index]
            moved_extents[key] = yield from in_layout(
                run,
                store,
                value,
                edge.made,
                edge.wanted,
                move_key,
                holds_integers=is_expert_choice(edge.extent),
            )
        tensors.append(moved_extents[key])
    return tuple(tensors)


def reads_batch(operator: Operator) -> bool:
    """True if the operator reads only data of the batch."""
    return operator.kind is OperatorKind.EMBEDDING or operator.reads_features


def batch_input(
    run: BlockRun, operator: Operator, place: OperatorShare, store: ParameterStore
) -> list[tuple[torch.Tensor | None, ...]]:
    """The input that an operator takes from the batch, for the device's tokens; empty if none.

    Token ids of an embedding (a teacher's are those of the text), patches of an image tower,
    numbers of image tokens, rotary positions of a text with an image, labels of a loss; for
    attention with image masks, the image run of all positions.
    """
    if operator.reads_features:
        patches = own_rows(run.data[run.block.sequence], place.samples, place.positions)
        spread = place.settings.image is not None and place.settings.image.spread
        return [((2 * (patches - 0.5) if spread else patches).to(store.precision.compute),)]
    if operator.merges:
        assert place.settings.image is not None, (
            "a model whose image tokens have no place is refused"
        )
        order = image_token_numbers(run.data[run.block.sequence], place.settings.image)
        return [(own_rows(order, place.samples, place.positions).unsqueeze(-1),)]
    if operator.kind is OperatorKind.ROTARY and isinstance(place.settings.turns, TextRotary):
        at = text_image_positions(
            run.data[run.block.sequence], place.settings.image, patches=run.data[IMAGE].shape[1]
        )
        return [(own_rows(at, place.samples, place.positions),)]
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
        return [(own_rows(ids, place.samples, place.positions).unsqueeze(-1),)]
    if operator.kind is OperatorKind.LOSS:
        return [(own_rows(run.data["labels"], place.samples, place.positions).unsqueeze(-1),)]
    return []


def key_selection(run: BlockRun, operator: Operator, values: dict[str, Gradients]) -> list[Values]:
    """The indexer's key selection as an attention's extra input; empty for other operators.

    Cuts that place the indexer on another device are rejected before a step.
    """
    if operator.kind is not OperatorKind.ATTENTION or operator.choice is None:
        return []
    maker = next(o for o in run.block.operators if o.kind is OperatorKind.INDEX)
    return [tuple(t for t in values[maker.name] if t is not None)]


def own_rows(tensor: torch.Tensor, samples: Indices, positions: Indices) -> torch.Tensor:
    """The device's samples and positions of a (samples, positions, ...) tensor."""
    return tensor.index_select(0, index_tensor(samples, like=tensor)).index_select(
        1, index_tensor(positions, like=tensor)
    )


def in_layout(
    run: BlockRun,
    store: ParameterStore,
    value: torch.Tensor | None,
    source: Layout,
    target: Layout,
    move_key: tuple[Hashable, ...],
    holds_integers: bool = False,
) -> Task[torch.Tensor | None]:
    """Redistribute one extent of an activation or a gradient to another layout.

    `holds_integers`: the extent holds integers.
    """
    device, dtype = (
        run.site.device + run.site.base,
        torch.int64 if holds_integers else store.precision.compute,
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


def weights_on_device(
    run: BlockRun, operator: Operator, place: OperatorShare, store: ParameterStore
) -> dict[str, torch.Tensor]:
    """The device's parts of an operator's parameters, by name, in the format of the computation."""
    return {
        p.name: store.use(run.run, run.layer, operator, p, place.parameters[p.name])
        for p in operator.parameters
    }
