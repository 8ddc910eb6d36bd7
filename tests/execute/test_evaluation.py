"""Losses of data that are not learnt: those of the unsplit model under plans of every form, and
without a trace in what is trained."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.training.device_training_state import DeviceState, PreparedTraining
from shardwright.execute.training.evaluation import evaluation_task
from shardwright.execute.transport.in_process_transport import run_in_process
from tests.execute.small_plans import PLANS, Small, run_here
from tests.execute.trained import train
from tests.tiers import in_both

FORMS = ("experts", "zb-v", "hybrid zero-3", "two lanes", "encoder and decoder")


def evaluated(
    small: Small, members: dict[int, DeviceState], known: PreparedTraining, number: int
) -> float:
    found = run_in_process(
        {
            d: evaluation_task(own, known, batch=small.batches(100 + number))
            for d, own in members.items()
        }
    )
    assert len(set(found.values())) == 1, "all devices say the same"
    return next(iter(found.values()))


@in_both
@pytest.mark.parametrize(
    "name", [pytest.param(form, marks=() if form in FORMS else pytest.mark.proof) for form in PLANS]
)
def test_losses_are_those_of_the_unsplit_model(name: str) -> None:
    small = PLANS[name]
    whole, members = small.alone(), small.members(small.known())
    alone = small.members(whole)
    assert evaluated(small, members, small.known(), 0) == pytest.approx(
        evaluated(small, alone, whole, 0), abs=1e-9
    )


@in_both
@pytest.mark.parametrize(
    "name",
    [
        "hybrid zero-3",
        *(pytest.param(name, marks=pytest.mark.proof) for name in ("zb-v", "experts")),
    ],
)
def test_what_is_trained_is_the_same_with_and_without(name: str) -> None:
    small = PLANS[name]
    known = small.known()
    plain, _ = run_here(small, known, steps=2)
    members = small.members(known)
    losses, seen = [], []
    for step in range(2):
        losses += [report.loss for report in train(members, known, [small.batches(step)])]
        seen.append(evaluated(small, members, known, 0))
        assert not any(
            h.gradient is not None
            for own in members.values()
            for boxes in own.store.held.values()
            for h in boxes.values()
        )
    assert losses == [report.loss for report in plain]
    assert len(set(seen)) == 2, "its own data change"
