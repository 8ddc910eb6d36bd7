"""Mixture-of-experts layers over several devices: routing, token exchange and expert linear layers.

Between ``permute`` and ``unpermute`` a value is (1, rows, elements) for each extent, one row for
each token that visits a local expert, and after the extents one tensor of integers ``routes`` (2,
rows): local number of the expert, and number of the token (sample x length + position). Rows are
sorted by expert, then token, whoever sent them. No capacity: no token is dropped.
"""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    input_gradients,
    parameters_by_role,
    require_gradient,
    shape_placeholder,
)
from shardwright.execute.numerics.base.top_k_experts import chosen_experts
from shardwright.execute.numerics.experts.grouped_gemm import (
    group_ends,
    grouped_matmul,
    grouped_outer_products,
)
from shardwright.execute.numerics.experts.token_exchange import (
    collect_from_experts,
    send_to_experts,
)
from shardwright.execute.numerics.layers.linear import (
    has_first_part,
    sum_tensors,
    weight_and_bias_names,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass


def route(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """Choose the top-k experts of each token by router logits: (weights, expert numbers).

    See `chosen_experts`.

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
    parameters = parameters_by_role(operator, weights)
    return chosen_experts(logits, parameters, shape=operator.experts, settings=place.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permute(WithoutParameters):
    """Send a copy of each token's row to every expert that it chose.

    Rows are multiplied by the expert's share if the operator is `Operator.weighed`.

    Inputs: x and ``route``'s (probabilities, numbers), of the same tokens.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Send token rows to their experts' devices; rows and routes for the local experts.

        See `Numerics`.
        """
        x, (probabilities, expert_ids) = inputs[0][0], inputs[1]
        flat, shares, weighed = x.flatten(0, 1), probabilities.flatten(0, 1), place.operator.weighed

        def rows_of(tokens: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
            """Rows of (token, slot) pairs, times their router weights if inputs are scaled."""
            return flat[tokens] * shares[tokens, slots].unsqueeze(-1) if weighed else flat[tokens]

        routes, rows = yield from send_to_experts(
            place, expert_ids, rows_of, width=x.shape[-1], like=x, purpose="rows"
        )
        kept_inputs = (
            (x, probabilities)
            if weighed
            else (shape_placeholder(x), shape_placeholder(probabilities))
        )
        saved = SavedTensors(
            inputs=((kept_inputs[0],), (kept_inputs[1], expert_ids)), own=(routes,)
        )
        return (rows.unsqueeze(0), routes), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of token rows, summed over experts, and of router weights (0 if not applied).

        See `Numerics`. Probabilities have a gradient if they multiply the rows.
        """
        (x,), (probabilities, expert_ids) = saved.inputs
        rows = (
            require_gradient(grads[0]).squeeze(0) if grads else x.new_zeros((0, x.shape[-1]))
        )  # a device without experts gets no gradients of rows
        row_grads = yield from collect_from_experts(
            place, expert_ids, saved.own[0], rows, purpose="gradients"
        )
        dx = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        flat, shares = x.flatten(0, 1), probabilities.flatten(0, 1)
        share_grads = torch.zeros_like(probabilities)
        for (tokens, slots), part in row_grads:
            weighted_grad = (
                part * shares[tokens, slots].unsqueeze(-1) if place.operator.weighed else part
            )
            dx.view(-1, x.shape[-1]).index_add_(0, tokens, weighted_grad)
            if place.operator.weighed:
                share_grads.flatten(0, 1).index_put_(
                    (tokens, slots), (part * flat[tokens]).sum(-1), accumulate=True
                )
        return (dx,), input_gradients(
            saved.inputs[1], {0: share_grads} if place.operator.weighed else {}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpermute(WithoutParameters):
    """Sum of each token's expert rows, weighted by probability: y = sum of probability x row.

    Rows that `Permute` has multiplied are only summed.

    Inputs: the experts' rows and ``route``'s values where the tokens are held.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Bring expert rows back to their tokens and sum them, weighted unless they already are.

        See `Numerics`.
        """
        (rows, routes), (probabilities, expert_ids) = inputs
        returned_rows = yield from collect_from_experts(
            place, expert_ids, routes, rows.squeeze(0), purpose="rows"
        )
        # (tokens, topk, elements): the row of each choice; parts of an expert's width are added.
        row_by_slot = rows.new_zeros((*expert_ids.flatten(0, 1).shape, rows.shape[-1]))
        for (tokens, slots), part in returned_rows:
            row_by_slot.index_put_((tokens, slots), part, accumulate=True)
        row_by_slot = row_by_slot.unflatten(0, expert_ids.shape[:2])
        if place.operator.weighed:
            return (row_by_slot.sum(-2),), SavedTensors(
                inputs=((shape_placeholder(rows), routes), inputs[1]),
                own=(shape_placeholder(row_by_slot),),
            )
        y = (probabilities.unsqueeze(-1) * row_by_slot).sum(-2)
        return (y,), SavedTensors(
            inputs=((shape_placeholder(rows), routes), inputs[1]), own=(row_by_slot,)
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of the experts' rows, sent there, and of probabilities (0 if `weighed`).

        See `Numerics`.
        """
        (_, _), (probabilities, expert_ids) = saved.inputs
        row_by_slot = saved.own[0]
        grad = (
            grads[0]
            if grads and grads[0] is not None
            else row_by_slot.new_zeros((*row_by_slot.shape[:2], row_by_slot.shape[-1]))
        )  # no tokens are held here
        weighed = place.operator.weighed
        products = (
            torch.zeros_like(probabilities)
            if weighed
            else (saved.own[0] * grad.unsqueeze(-2)).sum(-1)
        )
        flat, shares = grad.flatten(0, 1), probabilities.flatten(0, 1)
        _, rows = yield from send_to_experts(
            place,
            expert_ids,
            lambda tokens, slots: (
                flat[tokens] if weighed else flat[tokens] * shares[tokens, slots].unsqueeze(-1)
            ),
            width=grad.shape[-1],
            like=grad,
            purpose="gradients",
        )
        return (rows.unsqueeze(0), None), (products, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLinear:
    """Grouped linear layers y_e = x_e W_e (+ b_e) of the local experts, with explicit gradients.

    Where the contracted width is cut, y is a partial sum, and the device of the first part adds the
    bias.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Multiply each local expert's rows by its weights; the first part's device adds the bias.

        See `Numerics`.
        """
        yield from ()
        x, routes = inputs[0][0].squeeze(0), inputs[0][-1]
        ends = _expert_ends(place, routes)
        matrices, biases = weight_and_bias_names(place)
        outputs = [grouped_matmul(x, weights[name], ends) for name in matrices]
        if biases and has_first_part(place):
            outputs = [
                y + weights[name][routes[0]] for y, name in zip(outputs, biases, strict=True)
            ]
        saved = SavedTensors(
            inputs=((inputs[0][0], *(shape_placeholder(v) for v in inputs[0][1:-1]), routes),)
        )
        return (*(y.unsqueeze(0) for y in outputs), routes), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of the experts' rows.

        See `Numerics`.
        """
        yield from ()
        ends = _expert_ends(place, saved.inputs[0][-1])
        pairs = zip(grads, weight_and_bias_names(place)[0], strict=False)
        dx = sum_tensors(
            [
                grouped_matmul(require_gradient(g).squeeze(0), weights[name].transpose(1, 2), ends)
                for g, name in pairs
            ]
        )
        return (input_gradients(saved.inputs[0], {0: dx.unsqueeze(0)}),)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradients of the local experts' weights and biases.

        See `Numerics`.
        """
        yield from ()
        x, routes = saved.inputs[0][0].squeeze(0), saved.inputs[0][-1]
        ends = _expert_ends(place, routes)
        matrices, biases = weight_and_bias_names(place)
        weight_grads = {
            name: grouped_outer_products(x, require_gradient(g).squeeze(0), ends)
            for name, g in zip(matrices, grads, strict=False)
        }
        for name, g in zip(biases, grads, strict=False):
            weight_grads[name] = torch.zeros_like(at_least_float32(weights[name]))
            if has_first_part(place):
                weight_grads[name].index_add_(
                    0, routes[0], at_least_float32(require_gradient(g)).squeeze(0)
                )
        return {p.name: weight_grads[p.name] for p in place.operator.parameters if p.trainable}


def _expert_ends(place: OperatorShare, routes: torch.Tensor) -> torch.Tensor:
    """(local experts,) end of each expert's rows: cumulative row counts, from `routes`."""
    low, high = place.experts
    return group_ends(routes[0], high - low)
