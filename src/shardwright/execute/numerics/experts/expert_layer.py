"""Mixture of experts: the choice of experts, the way of tokens to them and back, and their
products.

Between ``permute`` and ``unpermute`` a value is (1, rows, elements) for each extent, one row for
each token that visits a local expert, and behind the extents one tensor of integers ``routes`` (2,
rows): local number of the expert, and number of the token (sample x length + position). Rows are
sorted by expert, then token, whoever sent them. No capacity: no token is dropped.
"""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.local_tensors import fine, given, hollow, returned
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.top_k_choice import chosen_experts
from shardwright.execute.numerics.experts.grouped_gemm import ends_of, outer_products, products
from shardwright.execute.numerics.experts.token_exchange import collected, dispatched
from shardwright.execute.numerics.layers.linear import names, sum_of
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass


def route(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """The choice of experts: see `chosen_experts`.

    Raises:
        StrategyError: the scores are cut (rule ``execute.scores``).
    """
    operator = place.operator
    assert operator.experts is not None
    logits = inputs[0][0]
    if logits.shape[-1] != operator.experts.experts:
        raise StrategyError(
            f"{operator.name} sees the scores of only {logits.shape[-1]} of"
            f" {operator.experts.experts} experts",
            hint="do not cut the router by experts",
            rule="execute.scores",
        )
    own = {p.name.rpartition(".")[2]: fine(weights[p.name]) for p in operator.parameters}
    return chosen_experts(logits, own, shape=operator.experts, settings=place.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permute:
    """Rows of tokens, copied to every expert that they chose, as they are or times what it counts
    (`Operator.weighed`).

    Inputs: x and ``route``'s (probabilities, numbers), of the same tokens.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        x, (probabilities, chosen) = inputs[0][0], inputs[1]
        flat, shares, weighed = x.flatten(0, 1), probabilities.flatten(0, 1), place.operator.weighed

        def rows_of(tokens: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
            return flat[tokens] * shares[tokens, slots].unsqueeze(-1) if weighed else flat[tokens]

        routes, rows = yield from dispatched(
            place, chosen, rows_of, width=x.shape[-1], like=x, what="rows"
        )
        kept = (x, probabilities) if weighed else (hollow(x), hollow(probabilities))
        saved = SavedTensors(inputs=((kept[0],), (kept[1], chosen)), own=(routes,))
        return (rows.unsqueeze(0), routes), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`: gradients of all copies of a token, added where it is held. Probabilities
        have theirs where they count.
        """
        (x,), (probabilities, chosen) = saved.inputs
        rows = (
            given(grads[0]).squeeze(0) if grads else x.new_zeros((0, x.shape[-1]))
        )  # nobody returns rows of experts that are not here
        came = yield from collected(place, chosen, saved.own[0], rows, what="gradients")
        dx = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        flat, shares = x.flatten(0, 1), probabilities.flatten(0, 1)
        counts = torch.zeros_like(probabilities)
        for (tokens, slots), part in came:
            own = part * shares[tokens, slots].unsqueeze(-1) if place.operator.weighed else part
            dx.view(-1, x.shape[-1]).index_add_(0, tokens, own)
            if place.operator.weighed:
                counts.flatten(0, 1).index_put_(
                    (tokens, slots), (part * flat[tokens]).sum(-1), accumulate=True
                )
        return (dx,), returned(saved.inputs[1], {0: counts} if place.operator.weighed else {})

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpermute:
    """y = sum over a token's experts of probability x row, or of rows that were weighed before.

    Inputs: the experts' rows and ``route``'s values where the tokens are held.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        (rows, routes), (probabilities, chosen) = inputs
        answers = yield from collected(place, chosen, routes, rows.squeeze(0), what="rows")
        # (tokens, topk, elements): what came for each choice; parts of an expert's width are added.
        each = rows.new_zeros((*chosen.flatten(0, 1).shape, rows.shape[-1]))
        for (tokens, slots), part in answers:
            each.index_put_((tokens, slots), part, accumulate=True)
        each = each.unflatten(0, chosen.shape[:2])
        if place.operator.weighed:
            return (each.sum(-2),), SavedTensors(
                inputs=((hollow(rows), routes), inputs[1]), own=(hollow(each),)
            )
        y = (probabilities.unsqueeze(-1) * each).sum(-2)
        return (y,), SavedTensors(inputs=((hollow(rows), routes), inputs[1]), own=(each,))

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        (_, _), (probabilities, chosen) = saved.inputs
        each = saved.own[0]
        grad = (
            grads[0]
            if grads and grads[0] is not None
            else each.new_zeros((*each.shape[:2], each.shape[-1]))
        )  # no tokens are held here
        weighed = place.operator.weighed
        products = (
            torch.zeros_like(probabilities)
            if weighed
            else (saved.own[0] * grad.unsqueeze(-2)).sum(-1)
        )
        flat, shares = grad.flatten(0, 1), probabilities.flatten(0, 1)
        _, rows = yield from dispatched(
            place,
            chosen,
            lambda tokens, slots: (
                flat[tokens] if weighed else flat[tokens] * shares[tokens, slots].unsqueeze(-1)
            ),
            width=grad.shape[-1],
            like=grad,
            what="gradients",
        )
        return (rows.unsqueeze(0), None), (products, None)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLinear:
    """y_e = x_e W_e (+ b_e) for the rows of every local expert, with explicit gradients.

    Where the contracted width is cut, y is a part of a sum, and the device of the first part adds
    the bias.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        yield from ()
        x, routes = inputs[0][0].squeeze(0), inputs[0][-1]
        ends = _ends(place, routes)
        matrices, biases = names(place)
        outputs = [products(x, weights[name], ends) for name in matrices]
        if biases and _first(place):
            outputs = [
                y + weights[name][routes[0]] for y, name in zip(outputs, biases, strict=True)
            ]
        saved = SavedTensors(
            inputs=((inputs[0][0], *(hollow(v) for v in inputs[0][1:-1]), routes),)
        )
        return (*(y.unsqueeze(0) for y in outputs), routes), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        yield from ()
        ends = _ends(place, saved.inputs[0][-1])
        pairs = zip(grads, names(place)[0], strict=False)
        dx = sum_of(
            [
                products(given(g).squeeze(0), weights[name].transpose(1, 2), ends)
                for g, name in pairs
            ]
        )
        return (returned(saved.inputs[0], {0: dx.unsqueeze(0)}),)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        x, routes = saved.inputs[0][0].squeeze(0), saved.inputs[0][-1]
        ends = _ends(place, routes)
        matrices, biases = names(place)
        found = {
            name: outer_products(x, given(g).squeeze(0), ends)
            for name, g in zip(matrices, grads, strict=False)
        }
        for name, g in zip(biases, grads, strict=False):
            found[name] = torch.zeros_like(fine(weights[name]))
            if _first(place):
                found[name].index_add_(0, routes[0], fine(given(g)).squeeze(0))
        return {p.name: found[p.name] for p in place.operator.parameters if p.trainable}


def _ends(place: OperatorShare, routes: torch.Tensor) -> torch.Tensor:
    low, high = place.experts
    return ends_of(routes[0], high - low)


def _first(place: OperatorShare) -> bool:
    low, high = place.reads[0]
    return low == 0 and high > low
