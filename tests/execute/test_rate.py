"""Learning rates by step, against the formulas as others write them; and that the update takes
them."""

from __future__ import annotations

from math import cos, pi

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics.base.run_precision import uniform_precision
from shardwright.execute.training.adamw_optimizer import AdamW, clip_factor, moments, update
from shardwright.execute.training.learning_rate import CURVES, RateCurve


def test_the_worked_numbers() -> None:
    curve = RateCurve(name="cosine", warmup=10, steps=110, least=0.1)
    assert [curve.share(step) for step in (1, 10, 60, 110, 500)] == pytest.approx(
        [0.1, 1.0, 0.55, 0.1, 0.1]
    )
    assert RateCurve().share(1) == RateCurve().share(10**9) == 1.0
    assert RateCurve(name="linear", steps=4).share(1) == 0.75


@pytest.mark.parametrize("name", CURVES)
def test_against_the_formula_behind_a_warm_up(name: str) -> None:
    curve = RateCurve(name=name, warmup=3, steps=23, least=0.25)
    for step in range(4, 24):
        done = (step - 3) / 20
        wanted = {
            "constant": 1.0,
            "linear": 1 - 0.75 * done,
            "cosine": 0.25 + 0.75 * (1 + cos(pi * done)) / 2,
        }[name]
        assert curve.share(step) == pytest.approx(wanted)
    shares = [curve.share(step) for step in range(3, 40)]
    assert shares == sorted(shares, reverse=True)


def test_updates_are_torchs_under_the_same_rates() -> None:
    rule = AdamW(
        rate=2e-2,
        betas=(0.8, 0.97),
        eps=1e-6,
        decay=0.2,
        clip=0.0,
        curve=RateCurve(name="cosine", warmup=2, steps=6, least=0.1),
    )
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    reference = torch.optim.AdamW(
        [theirs], lr=rule.rate, betas=rule.betas, eps=rule.eps, weight_decay=rule.decay
    )
    follows = torch.optim.lr_scheduler.LambdaLR(reference, lambda done: rule.curve.share(done + 1))
    mine, states = start.clone(), moments(start, precision=uniform_precision(torch.float64))
    for step in range(1, 9):
        gradient = torch.randn(7, generator=generator, dtype=torch.float64)
        theirs.grad = gradient.clone()
        reference.step()
        follows.step()
        update(
            mine,
            gradient,
            states,
            step=step,
            rule=rule,
            factor=clip_factor(torch.tensor(1.0), rule),
        )
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-13, atol=1e-13)
