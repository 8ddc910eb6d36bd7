"""Attention operator with every mask of the catalog, over local, gathered or ring-passed keys."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.attention_by_key_block import (
    attend_to_keys,
    attend_to_keys_backward,
    merge_heads,
    split_heads,
)
from shardwright.execute.numerics.attention.indexer_key_block_selection import split_off_selection
from shardwright.execute.numerics.attention.key_value_exchange import (
    KeyBlock,
    gather_keys,
    local_key_positions,
    reduce_scatter_key_grads,
    ring_step,
)
from shardwright.execute.numerics.attention.merge_fused_attention_calls import PartialAttention
from shardwright.execute.numerics.attention.unfused_attention import ScoreInputs, shape_of
from shardwright.execute.numerics.base.operator_collectives import group_members
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    index_tensor,
    input_gradients,
    require_gradient,
    shape_placeholder,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Forward and backward of softmax(Q K^T) V for the device's query heads.

    Scores are divided by the root of a key head's width (unless they are plain), and multiplied by
    the settings' factor. Inputs: q k v in one, or q and (k, v) in two (cross-attention: the keys'
    positions are the memory's). Keys may have more positions than the queries
    (`OperatorShare.key_positions`). If an indexer selects keys, its selection follows the other
    inputs (`split_off_selection`); with image masks, so do the runs of image tokens
    (`image_run_numbers`). If positions are split, keys and values are passed around a ring
    (`groups["ring"]`; in backward together with their gradients), or gathered from all members, in
    backward once more (`groups["gather"]`). The gradient of a table of distance biases is a sum of
    the scores' gradients. It is computed with the input gradient, which has the keys of all
    positions, and returned as the weight gradient. Key blocks are attended to one after another
    (`attention_by_key_block`); the output and the logarithm of its denominator are saved.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Attention output by position; saves q, k, v, the output and log denominators.

        See `Numerics`.

        Raises:
            StrategyError: as `split_off_selection`.
        """
        inputs, selection = split_off_selection(place, inputs)
        query, key, value = _query_key_value(inputs)
        query = apply_temperature(place, query)
        kept_inputs = tuple(
            tuple(value if i < 3 else shape_placeholder(value) for i, value in enumerate(values))
            for values in inputs
        )
        score_inputs = _score_inputs(place, inputs, weights, selection)
        keys = yield from gather_keys(
            place,
            KeyBlock(key=key, value=value, positions=local_key_positions(place)),
            purpose="keys",
        )
        attended = attend_to_keys(place, query, keys, None, score_inputs)
        for step in range(1, len(group_members(place, "ring"))):
            keys = yield from ring_step(place, keys, step, purpose="keys")
            attended = attend_to_keys(place, query, keys, attended, score_inputs)
        out = merge_heads(attended[0].to(query.dtype))
        return (out,), SavedTensors(
            inputs=kept_inputs,
            own=(
                out,
                attended[1],
                *(torch.zeros_like(at_least_float32(t)) for t in score_inputs.table),
                *selection,
            ),
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of queries, keys and values, with keys gathered or passed around again.

        See `Numerics`.
        """
        query, key, value = _query_key_value(saved.inputs)
        query, grad = (
            apply_temperature(place, query),
            split_heads(place, require_gradient(grads[0])),
        )
        attended, table_grads, selection = _saved_results(place, saved)
        score_inputs = _score_inputs(place, saved.inputs, weights, selection)
        own_keys = yield from gather_keys(
            place,
            KeyBlock(key=key, value=value, positions=local_key_positions(place)),
            purpose="keys again",
        )
        dq, own_key_grads, *block_table_grads = attend_to_keys_backward(
            place, query, own_keys, attended, grad, score_inputs
        )
        _add_table_grads(table_grads, block_table_grads)
        keys, travelling_grads = own_keys, None
        size = len(group_members(place, "ring"))
        for step in range(1, size):
            keys = yield from ring_step(place, keys, step, purpose="keys again")
            if travelling_grads is not None:
                travelling_grads = yield from ring_step(
                    place, travelling_grads, step, purpose="key gradients"
                )
            block_query_grad, block_key_grads, *block_table_grads = attend_to_keys_backward(
                place, query, keys, attended, grad, score_inputs
            )
            dq, travelling_grads = (
                at_least_float32(dq) + block_query_grad,
                block_key_grads
                if travelling_grads is None
                else travelling_grads.added_to(block_key_grads),
            )
            _add_table_grads(table_grads, block_table_grads)
        if travelling_grads is not None:
            own_key_grads = own_key_grads.added_to(
                (yield from ring_step(place, travelling_grads, size, purpose="key gradients"))
            )
        dk, dv = yield from reduce_scatter_key_grads(place, own_key_grads, key.shape[1])
        return _gradients_by_input(saved, apply_temperature(place, dq.to(query.dtype)), dk, dv)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradients of attention sinks and distance-bias tables.

        See `Numerics`. Of a sink: -p(sink) x <output, its gradient>, summed over tokens; of a
        table: the sum that `input_grad` computed.
        """
        yield from ()
        weight_grads = {}
        (out, normal), table_grads, _ = _saved_results(place, saved)
        if shape_of(place).sinks:
            name = place.operator.parameters[0].name
            share = (at_least_float32(weights[name]).unsqueeze(-1) - normal).exp()
            weight_grads[name] = -(
                share
                * (at_least_float32(split_heads(place, require_gradient(grads[0]))) * out).sum(-1)
            ).sum((0, 2))
        if place.operator.distances is not None:
            (weight_grads[place.operator.distances.name],) = table_grads
        return weight_grads


def _score_inputs(
    place: OperatorShare, inputs: tuple[Values, ...], weights: Weights, selection: Values
) -> ScoreInputs:
    """Inputs of scores besides queries and keys: biases, sinks, image runs and selected keys."""
    distances = place.operator.distances
    return ScoreInputs(
        table=() if distances is None else (weights[distances.name],),
        sinks=(weights[place.operator.parameters[0].name],) if shape_of(place).sinks else (),
        runs=inputs[-1][0] if place.operator.sees_images else None,
        chosen=selection,
    )


def _saved_results(
    place: OperatorShare, saved: SavedTensors
) -> tuple[PartialAttention, list[torch.Tensor], Values]:
    """(output and log denominator by head, bias-table gradients so far, key selection).

    The last two are empty where they do not exist.
    """
    out, normal, *extra = saved.own
    attended = split_heads(place, out), normal
    return (attended, [], tuple(extra)) if shape_of(place).selected else (attended, extra, ())


def _add_table_grads(totals: list[torch.Tensor], block_grads: list[torch.Tensor]) -> None:
    """Add one key block's bias-table gradients to the totals, in place."""
    for total, block_grad in zip(totals, block_grads, strict=True):
        total += block_grad


def _gradients_by_input(
    saved: SavedTensors, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor
) -> tuple[Gradients, ...]:
    """Gradients in the form of the operator's inputs: one input of q, k, v, or two inputs."""
    if len(saved.inputs[0]) > 2:
        return (input_gradients(saved.inputs[0], {0: dq, 1: dk, 2: dv}),)
    return input_gradients(saved.inputs[0], {0: dq}), input_gradients(
        saved.inputs[1], {0: dk, 1: dv}
    )


def temperature_factors(positions: torch.Tensor, temper: tuple[float, float]) -> torch.Tensor:
    """Query factors 1 + strength ln(1 + floor((p + 1) / every)) at each position p, in float64.

    Args:
        temper: (every, strength).

    Worked: with (8192, 0.1) the first 8,191 queries are as they were, the next 8,192 are 1.069
    times as long.

    Sources: Nakanishi 2025 (arXiv 2501.19399) for a factor that grows with the logarithm of the
    length; this form is of Llama 4's configuration class in Transformers
    (``attn_temperature_tuning``).
    """
    every, strength = temper
    return 1.0 + strength * torch.log1p(torch.floor((positions.to(torch.float64) + 1.0) / every))


def apply_temperature(place: OperatorShare, query: torch.Tensor) -> torch.Tensor:
    """Multiply queries, or their gradients, by the operator's `temperature_factors`, if any."""
    if not place.operator.tempered:
        return query
    factors = temperature_factors(index_tensor(place.positions, like=query), place.settings.temper)
    return query * factors.to(query.dtype).view(1, -1, *(1,) * (query.dim() - 2))


def _query_key_value(inputs: tuple[Values, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values from one or two inputs."""
    query, key, value = [v for values in inputs for v in values][:3]
    return query, key, value
