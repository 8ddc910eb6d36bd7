"""Routed experts over devices equal the experts on one device, whoever holds the tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import RoutedTokens
from shardwright.execute.numerics.base.top_k_experts import chosen_experts
from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import ExpertShape
from shardwright.model.ir.tensor_dims import Dim
from tests.execute.lockstep import alone, local_weights, made_weights, place_of, rows_of, run

HIDDEN, FFN, EXPERTS, LENGTH = 5, 6, 5, 7
OPERATORS = {
    o.name: o
    for o in moe_operators(
        source="norm2",
        hidden=HIDDEN,
        ffn=FFN,
        experts=ExpertShape(experts=EXPERTS, topk=2),
        bias=True,
    )
}
CHAIN = ("permute", "experts.up", "experts.act", "experts.down", "unpermute")
ALL = ((0, 2),)
TOKENS = (ALL, ((0, LENGTH),))


def sides(x: Any, routes: Any, values: dict[str, Any], name: str) -> tuple[Any, ...]:
    """The inputs of an operator of the chain."""
    if name == "permute":
        return ((x,), routes)
    before = values[CHAIN[CHAIN.index(name) - 1]]
    return (before, routes) if name == "unpermute" else (before,)


def experts_task(
    places: dict[str, Any], weights: dict[str, Any], x: Any, routes: Any, grad: Any
) -> Any:
    """Forward and backward of the chain: (y, dx, gradient of the probabilities, gradients of
    weights)."""
    values: dict[str, Any] = {}
    saved: dict[str, Any] = {}
    for name in CHAIN:
        values[name], saved[name] = yield from numerics_of(OPERATORS[name]).forward(
            places[name], sides(x, routes, values, name), weights[name]
        )
    grads: Any = (grad,)
    found: dict[str, Any] = {}
    shares = None
    for name in reversed(CHAIN):
        numerics = numerics_of(OPERATORS[name])
        found |= yield from numerics.weight_grad(places[name], saved[name], grads, weights[name])
        back = yield from numerics.input_grad(places[name], saved[name], grads, weights[name])
        if name == "unpermute":
            shares = back[1][0]
        grads = back[0]
    return values["unpermute"][0], grads[0], shares, found


def box_rows(whole: Any, box: Any) -> Any:
    return whole[rows_of(box[0])][:, rows_of(box[1])] if box else whole[:0, :0]


def device(
    home: Any,
    serves: Any,
    experts: tuple[int, int],
    ffn: tuple[int, int] = (0, FFN),
    copy: bool = False,
) -> tuple[RoutedTokens, Any]:
    return RoutedTokens(held_tokens=home, expert_tokens=serves, experts=experts, copy=copy), ffn


HALF = (ALL, ((0, 1), (5, 7))), (ALL, ((1, 5),))
SAMPLES = (((0, 1),), ((0, LENGTH),)), (((1, 2),), ((0, LENGTH),))
QUARTERS = tuple((s[0], p[1]) for s in SAMPLES for p in HALF)
PLACES: dict[str, list[Any]] = {
    "each its own tokens": [device(HALF[0], TOKENS, (0, 2)), device(HALF[1], TOKENS, (2, 5))],
    "width cut too": [
        device(q, TOKENS, e, f)
        for q, (e, f) in zip(
            QUARTERS, [(e, f) for e in ((0, 3), (3, 5)) for f in ((0, 2), (2, 6))], strict=True
        )
    ],
    "all hold all": [device(TOKENS, TOKENS, (0, 2)), device(TOKENS, TOKENS, (2, 5))],
    "all hold all, width cut": [
        device(TOKENS, TOKENS, (0, 5), (0, 1)),
        device(TOKENS, TOKENS, (0, 5), (1, 6)),
    ],
    "pairs hold alike": [
        device(SAMPLES[i // 2], TOKENS, e) for i, e in enumerate(((0, 1), (1, 2), (2, 4), (4, 5)))
    ],
    "experts of their own samples": [
        device(SAMPLES[i // 2], SAMPLES[i // 2], e)
        for i, e in enumerate(((0, 2), (2, 5), (0, 2), (2, 5)))
    ],
    "experts elsewhere": [
        device(HALF[0], (), (0, 0)),
        device(HALF[1], (), (0, 0)),
        device((), TOKENS, (0, 4)),
        device((), TOKENS, (4, 5)),
    ],
    "copies": [device(HALF[0], TOKENS, (0, 5)), device(HALF[1], TOKENS, (0, 5), copy=True)],
}


@pytest.mark.parametrize("case", PLACES)
def test_experts_over_devices(case: str) -> None:
    generator = torch.Generator().manual_seed(11)
    x, grad = (
        torch.randn((2, LENGTH, HIDDEN), generator=generator, dtype=torch.float64) for _ in range(2)
    )
    logits = torch.randn((2, LENGTH, EXPERTS), generator=generator, dtype=torch.float64)
    weights = {name: made_weights(OPERATORS[name], generator) for name in CHAIN}
    routes, _ = alone(
        numerics_of(OPERATORS["route"]).forward(
            place_of(OPERATORS["route"], length=LENGTH), ((logits,),), {}
        )
    )
    whole = {name: place_of(OPERATORS[name], length=LENGTH) for name in CHAIN}
    y, dx, shares, found = alone(experts_task(whole, weights, x, routes, grad))

    layout = PLACES[case]
    routing = {d: routed for d, (routed, _) in enumerate(layout)}
    tasks = {}
    for d, (routed, ffn) in enumerate(layout):
        places = {
            name: replace(
                place_of(
                    OPERATORS[name],
                    length=LENGTH,
                    device=d,
                    cuts={Dim.FFN: ffn, Dim.EXPERTS: routed.experts},
                ),
                experts=routed.experts,
                routing=routing,
                parameters={
                    p.name: tuple(
                        (
                            (
                                routed.experts
                                if e.dim is Dim.EXPERTS
                                else ffn
                                if e.dim is Dim.FFN
                                else (0, e.size)
                            ),
                        )
                        for e in p.extents
                    )
                    for p in OPERATORS[name].parameters
                },
            )
            for name in CHAIN
        }
        own = {name: local_weights(places[name], weights[name]) for name in CHAIN}
        tasks[d] = experts_task(
            places,
            own,
            box_rows(x, routed.held_tokens),
            tuple(box_rows(v, routed.held_tokens) for v in routes),
            box_rows(grad, routed.held_tokens),
        )
    results = run(tasks)
    for d, (routed, _) in enumerate(layout):
        for got, expected in zip(results[d][:3], (y, dx, shares), strict=True):
            torch.testing.assert_close(
                got, box_rows(expected, routed.held_tokens), rtol=1e-12, atol=1e-12
            )
    for name, expected in found.items():
        got = torch.zeros_like(expected)
        for d, (routed, ffn) in enumerate(layout):
            part = results[d][3][name]
            if routed.copy:
                twin = results[d - 1][3][name]
                torch.testing.assert_close(part, twin, rtol=1e-12, atol=1e-12)
                continue
            view = got[routed.experts[0] : routed.experts[1]]
            extents = next(
                p for o in OPERATORS.values() for p in o.parameters if p.name == name
            ).extents
            for dim, extent in enumerate(extents):
                view = view.narrow(dim, ffn[0], ffn[1] - ffn[0]) if extent.dim is Dim.FFN else view
            view += part
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_equal_scores_go_to_the_lowest_experts() -> None:
    route = OPERATORS["route"]
    logits = torch.zeros((1, 3, EXPERTS), dtype=torch.float64)
    logits[0, 1, 3] = 1.0
    logits[0, 2, 4] = logits[0, 2, 2] = 1.0
    (shares, chosen), _ = alone(
        numerics_of(route).forward(place_of(route, length=3, samples=1), ((logits,),), {})
    )
    assert chosen.tolist() == [[[0, 1], [3, 0], [2, 4]]]
    torch.testing.assert_close(shares.sum(-1), torch.ones((1, 3), dtype=torch.float64))


def test_a_cut_router_is_refused() -> None:
    with pytest.raises(StrategyError, match="of 5 experts"):
        alone(
            numerics_of(OPERATORS["route"]).forward(
                place_of(OPERATORS["route"], length=3), ((torch.zeros((2, 3, 2)),),), {}
            )
        )


@pytest.mark.parametrize(
    ("add_up", "factor", "wanted"),
    [(True, 1.0, (0.8, 0.2)), (False, 1.0, (0.4, 0.1)), (False, 2.0, (0.8, 0.2))],
)
def test_the_choice_within_a_group(
    add_up: bool, factor: float, wanted: tuple[float, float]
) -> None:
    """The worked number of `chosen_experts`; without groups expert 2 would be chosen."""
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2], dtype=torch.float64).log()
    settings = Settings(shares_add_up=add_up, share_factor=factor)
    shape = ExpertShape(experts=4, topk=2, groups=1, of_groups=2)
    shares, chosen = chosen_experts(logits, {}, shape=shape, settings=settings)
    assert chosen.tolist() == [0, 1]
    assert shares.tolist() == pytest.approx(wanted)
    assert chosen_experts(logits, {}, shape=ExpertShape(experts=4, topk=2), settings=settings)[
        1
    ].tolist() == [0, 2]


def test_a_corrected_group_ranks_by_its_two_best() -> None:
    """Scores of one half; corrections .5 0 .3 .3: sums of the two best are 1.5 and 1.6, so the
    second group is chosen."""
    own = {"correction": torch.tensor([0.5, 0.0, 0.3, 0.3], dtype=torch.float64)}
    shape = ExpertShape(experts=4, topk=2, groups=1, of_groups=2)
    shares, chosen = chosen_experts(
        torch.zeros(4, dtype=torch.float64), own, shape=shape, settings=Settings()
    )
    assert (chosen.tolist(), shares.tolist()) == ([2, 3], [0.5, 0.5])
