"""softmax(Q K^T) V with every mask of the catalog, keys of the device's positions, gathered from
its group or passed round a ring.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.attention_by_key_block import (
    by_head,
    met,
    met_back,
    side_by_side,
)
from shardwright.execute.numerics.attention.fused_kernel_calls import Made
from shardwright.execute.numerics.attention.key_exchange import (
    Keys,
    gathered,
    own_positions,
    passed,
    sent_back,
)
from shardwright.execute.numerics.attention.selected_key_blocks import selection_of
from shardwright.execute.numerics.attention.unfused_attention import ScoreInputs, shape_of
from shardwright.execute.numerics.base.group_calls import members
from shardwright.execute.numerics.base.local_tensors import fine, given, hollow, numbers, returned
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The core: local query heads against the key heads that they read.

    Scores are divided by the root of a key head's width (unless they are plain), and multiplied
    with the settings' factor. Inputs: q k v in one, or q and (k, v) in two (cross-attention: keys'
    positions are the memory's). Keys may be those of more positions than the queries
    (`Place.key_positions`). Where an indexer selects keys, what it selected comes behind the other
    inputs (`selection_of`); of a core that sees images, the runs of image tokens (`image_runs`).
    Where positions are split, keys and values are passed round (`groups["ring"]`; in backward with
    the gradients that their owner is to get), or gathered from all members and gathered again in
    backward (`groups["gather"]`). The gradient of a table of biases by distance is a sum of the
    scores' cotangents: it is found with the input gradient, where the keys of all positions pass
    by, and given out as the weight's. Queries meet one block of keys after another (`core`); the
    output and the logarithm of its denominator are kept.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: as `selection_of`.
        """
        inputs, chosen = selection_of(place, inputs)
        query, key, value = _parts(inputs)
        query = tempered(place, query)
        kept = tuple(
            tuple(v if i < 3 else hollow(v) for i, v in enumerate(values)) for values in inputs
        )
        beside = _beside(place, inputs, weights, chosen)
        keys = yield from gathered(
            place, Keys(key=key, value=value, positions=own_positions(place)), what="keys"
        )
        made = met(place, query, keys, None, beside)
        for step in range(1, len(members(place, "ring"))):
            keys = yield from passed(place, keys, step, what="keys")
            made = met(place, query, keys, made, beside)
        out = side_by_side(made[0].to(query.dtype))
        return (out,), SavedTensors(
            inputs=kept,
            own=(out, made[1], *(torch.zeros_like(fine(t)) for t in beside.table), *chosen),
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        query, key, value = _parts(saved.inputs)
        query, grad = tempered(place, query), by_head(place, given(grads[0]))
        made, learned, chosen = _kept(place, saved)
        beside = _beside(place, saved.inputs, weights, chosen)
        own = yield from gathered(
            place, Keys(key=key, value=value, positions=own_positions(place)), what="keys again"
        )
        dq, of_own, *found = met_back(place, query, own, made, grad, beside)
        _added(learned, found)
        keys, of_others = own, None
        size = len(members(place, "ring"))
        for step in range(1, size):
            keys = yield from passed(place, keys, step, what="keys again")
            if of_others is not None:
                of_others = yield from passed(place, of_others, step, what="key gradients")
            more, of_these, *found = met_back(place, query, keys, made, grad, beside)
            dq, of_others = (
                fine(dq) + more,
                of_these if of_others is None else of_others.plus(of_these),
            )
            _added(learned, found)
        if of_others is not None:
            of_own = of_own.plus((yield from passed(place, of_others, size, what="key gradients")))
        dk, dv = yield from sent_back(place, of_own, key.shape[1])
        return _returned(saved, tempered(place, dq.to(query.dtype)), dk, dv)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`: of a sink, -p(sink) x <output, its gradient>, summed over tokens; of a
        table what the input gradient found.
        """
        yield from ()
        found = {}
        (out, normal), learned, _ = _kept(place, saved)
        if shape_of(place).sinks:
            name = place.operator.parameters[0].name
            share = (fine(weights[name]).unsqueeze(-1) - normal).exp()
            found[name] = -(share * (fine(by_head(place, given(grads[0]))) * out).sum(-1)).sum(
                (0, 2)
            )
        if place.operator.distances is not None:
            (found[place.operator.distances.name],) = learned
        return found


def _beside(
    place: OperatorShare, inputs: tuple[Values, ...], weights: Weights, chosen: Values
) -> ScoreInputs:
    distances = place.operator.distances
    return ScoreInputs(
        table=() if distances is None else (weights[distances.name],),
        sinks=(weights[place.operator.parameters[0].name],) if shape_of(place).sinks else (),
        runs=inputs[-1][0] if place.operator.sees_images else None,
        chosen=chosen,
    )


def _kept(place: OperatorShare, saved: SavedTensors) -> tuple[Made, list[torch.Tensor], Values]:
    """(output and logarithm of the denominator by head, what scores say of the table of biases, the
    selection of keys); the last two where there are some.
    """
    out, normal, *others = saved.own
    made = by_head(place, out), normal
    return (made, [], tuple(others)) if shape_of(place).selected else (made, others, ())


def _added(learned: list[torch.Tensor], found: list[torch.Tensor]) -> None:
    """Add what the scores of one block of keys say of the table to what those before said."""
    for total, more in zip(learned, found, strict=True):
        total += more


def _returned(
    saved: SavedTensors, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor
) -> tuple[Gradients, ...]:
    if len(saved.inputs[0]) > 2:
        return (returned(saved.inputs[0], {0: dq, 1: dk, 2: dv}),)
    return returned(saved.inputs[0], {0: dq}), returned(saved.inputs[1], {0: dk, 1: dv})


def growth(positions: torch.Tensor, temper: tuple[float, float]) -> torch.Tensor:
    """What queries are multiplied with: 1 + strength ln(1 + floor((p + 1) / every)) at position p,
    in float64.

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


def tempered(place: OperatorShare, query: torch.Tensor) -> torch.Tensor:
    """Queries (samples, positions, ..), or their gradients, times their `growth`, where they grow
    with their position.
    """
    if not place.operator.tempered:
        return query
    factors = growth(numbers(place.positions, like=query), place.settings.temper)
    return query * factors.to(query.dtype).view(1, -1, *(1,) * (query.dim() - 2))


def _parts(inputs: tuple[Values, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = [v for values in inputs for v in values][:3]
    return query, key, value
