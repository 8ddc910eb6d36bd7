"""Steps under a plan change parameters as torch's AdamW changes those of the unsplit model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import Key, box_slice, seeded
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.execute.training.device_training_state import create_device_state
from tests.execute.small_plans import PLANS, RULE, Small, run_here
from tests.execute.trained import train
from tests.tiers import chosen


def _by_torch(
    small: Small, *, steps: int
) -> tuple[list[float], list[float], dict[Key, torch.Tensor]]:
    """Losses, norms and parameters of the unsplit model, whose gradients torch.optim.AdamW and
    clip_grad_norm_ use."""
    model, job = small.model, small.job
    plan, source = single_device_plan(model, job), seeded(model, seed=0)
    (store,) = run_step(model, job, plan, batch=small.batches(0), source=source).stores.values()
    parameters = {key: torch.nn.Parameter(source(key)) for key in store.held}
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=RULE.rate, betas=RULE.betas, eps=RULE.eps, weight_decay=RULE.decay
    )
    losses, norms = [], []
    for step in range(steps):
        result = run_step(
            model,
            job,
            plan,
            batch=small.batches(step),
            source=lambda key: parameters[key].detach().clone(),
        )
        (store,) = result.stores.values()
        for key, boxes in store.held.items():
            (held,) = boxes.values()
            parameters[key].grad = held.gradient
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), RULE.clip)))
        losses.append(float(result.loss))
        optimizer.step()
    return losses, norms, {key: parameter.detach() for key, parameter in parameters.items()}


@pytest.mark.parametrize(
    "name",
    chosen(["zero-3", "tp2 then dp2", "experts", "unequal lanes"], ["zero-3", "unequal lanes"]),
)
def test_parameters_change_as_torch_changes_them(name: str) -> None:
    small = PLANS[name]
    losses, norms, expected = _by_torch(small, steps=2)
    known = small.known()
    reports, members = run_here(small, known, steps=2)
    assert [r.loss for r in reports] == pytest.approx(losses, rel=1e-12)
    assert [r.norm for r in reports] == pytest.approx(norms, rel=1e-12)
    assert max(norms) > RULE.clip, "clipping is at work"
    compared = 0
    for own in members.values():
        for key, boxes in own.store.held.items():
            for held in boxes.values():
                if held.value.numel():
                    torch.testing.assert_close(
                        held.value, box_slice(expected[key], held.box), rtol=0, atol=1e-10
                    )
                    compared += 1
    sharded = sum(piece.numel() for own in members.values() for piece in own.pieces.values())
    assert compared or sharded == sum(p.numel() for p in expected.values())


def test_a_batch_again_and_again_is_learnt() -> None:
    small = PLANS["zero-2"]
    known = small.known()
    members = {
        d: create_device_state(d, known, source=seeded(small.model, seed=0)) for d in known.devices
    }
    losses = [r.loss for r in train(members, known, [small.batches(0)] * 6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]


def test_degrees_that_do_not_nest_are_refused() -> None:
    body = (
        "lane main samples 12 in 1\n  stages embed+2+head on 0\n    all = b12\norder 1f1b(main)\n"
    )
    small = Small(body=body, devices=12, batch=12, zero="zero all: 8/4/1\n")
    with pytest.raises(StrategyError) as caught:
        small.known()
    assert caught.value.rule == "zero.nested"
