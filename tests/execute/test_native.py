"""Grids train on PyTorch's own engine with the losses of a single process under the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import nan, prod
from statistics import fmean
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch.distributed has no gloo here", allow_module_level=True)

from shardwright.execute.native.device_meshes import has_expert_mesh
from shardwright.execute.training.evaluation import evaluation_task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.step_trace import ACTIONS, Track
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.plan import Plan
from tests.execute.native_ranks import (
    CASES,
    KEPT,
    LAST,
    RANKS,
    STEPS,
    TRAINED,
    UNLEARNT,
    WATCHED,
    start,
)
from tests.execute.small_plans import Small, alone_reports
from tests.execute.started import finished
from tests.execute.traces import check_measured
from tests.execute.trained import train
from tests.tiers import in_both

SPARSE_MODEL = CASES["experts on ep4"].small.model
CLOSE = 1e-10
HALF = 0.03
"""Of losses and norms that were computed in bfloat16, whose numbers have 8 bits."""


EVALUATED = [TRAINED[name].small for name in WATCHED]
"""Of which the single process evaluates what is not learnt."""


@lru_cache(maxsize=8)
def _alone(small: Small) -> tuple[tuple[float, float, float], ...]:
    """(loss, norm, mean loss of what is evaluated behind it) of each step in a single process."""
    known = small.alone()
    members, found = small.members(known), []
    for step in range(STEPS):
        (report,) = train(members, known, [small.batches(step)])
        unlearnt = [
            run_in_process(
                {
                    d: evaluation_task(own, known, batch=small.batches(n))
                    for d, own in members.items()
                }
            )
            for n in (UNLEARNT if small in EVALUATED else ())
        ]
        found.append(
            (
                report.loss,
                report.norm,
                fmean(loss for losses in unlearnt for loss in losses.values()) if unlearnt else nan,
            )
        )
    return tuple(found)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """What each rank found. The single process runs while they do."""
    folder = tmp_path_factory.mktemp("native")
    with finished(
        start(folder), folder, meanwhile=lambda: [_alone(case.small) for case in TRAINED.values()]
    ) as found:
        yield found


@in_both
@pytest.mark.parametrize("name", TRAINED)
def test_losses_and_norms_are_those_of_a_single_process(ranks: list[Any], name: str) -> None:
    expected, close = _alone(TRAINED[name].small), CLOSE if TRAINED[name].compute is None else HALF
    assert expected[0][0] != pytest.approx(expected[-1][0], abs=1e-3), "training changes the loss"
    apart = [
        abs(r.loss - loss)
        for r, (loss, *_) in zip(ranks[0]["trained"][name], expected, strict=True)
    ]
    assert (max(apart) > CLOSE) == (TRAINED[name].compute is not None), (
        "fewer bits give other numbers"
    )
    for found in ranks:
        reports = found["trained"][name]
        assert [r.step for r in reports] == list(range(1, STEPS + 1))
        for report, (loss, norm, _) in zip(reports, expected, strict=True):
            assert abs(report.loss - loss) < close
            assert abs(report.norm - norm) < close * max(1.0, norm)


@in_both
@pytest.mark.parametrize("name", sorted(WATCHED))
def test_what_is_not_learnt_has_the_losses_of_a_single_process(ranks: list[Any], name: str) -> None:
    """Behind every step; that training goes on as without, the test above says."""
    expected, close = (
        [unlearnt for *_, unlearnt in _alone(TRAINED[name].small)],
        CLOSE if TRAINED[name].compute is None else HALF,
    )
    assert len(set(expected)) == STEPS
    for found in ranks:
        assert found["evaluated"][name] == pytest.approx(expected, abs=close)


@in_both
@pytest.mark.parametrize("name", sorted(WATCHED))
def test_a_trace_has_the_actions_of_the_plan(ranks: list[Any], name: str) -> None:
    case = TRAINED[name]
    plan = plan_of(case.grid, model=case.small.model, global_batch=case.small.batch)
    if case.order is not None:
        plan = replace(plan, orders=(case.order,))
    trace = ranks[0]["traces"][name]
    check_measured(case.small, trace, plan=plan)
    piped = case.grid.pp > 1
    messages = {(s.kind, s.within) for s in trace.spans if s.track is Track.MESSAGES}
    assert {kind for kind, _ in messages} == ({"send", "receive"} if piped else set())
    assert all((within in ACTIONS) == (kind == "receive") for kind, within in messages)
    experts = any(
        o.kind is OperatorKind.GROUPED_LINEAR
        for block in case.small.model.blocks
        for o in block.operators
    )
    replicas, spread = case.grid.dp * case.grid.cp, experts and has_expert_mesh(case.grid)
    sharded = replicas > 1 or case.compute is not None or spread
    summed = replicas > 1 or (spread and replicas * case.grid.tp > case.grid.ep * case.grid.etp)
    asked = {(s.kind, s.within) for s in trace.spans if s.track is Track.COLLECTIVES}
    shards = (case.grid.shard or case.grid.dp * case.grid.cp) if case.grid.zero else 1
    assert (("all_gather", "F") in asked) == (shards > 1)
    sums = "reduce_scatter" if shards > 1 else "all_reduce"
    assert ((sums, "REDUCE" if piped else "B") in asked) == summed
    assert ("all_reduce", "STEP") in asked
    for device in range(RANKS):
        own = sorted((s for s in trace.spans if s.device == device), key=lambda s: s.start_s)
        assert [s.kind for s in own if s.kind in ("REDUCE", "STEP") and s.chunk < 0] == [
            "REDUCE",
            "STEP",
        ]
        assert ({s.kind for s in own if s.track is Track.SYNC and s.chunk >= 0}) == (
            {"GATHER", "REDUCE"} if piped and sharded else set()
        )
        ran = [
            (s.kind, s.chunk, s.microbatch)
            for s in own
            if s.track is Track.COMPUTE and s.kind in ACTIONS
        ]
        assert ran == (
            _row(plan, device) if piped else sorted(ran, key=lambda action: action[2])
        ), "in the plan's order"


def _row(plan: Plan, device: int) -> list[tuple[str, int, int]]:
    """(kind, chunk, microbatch) of the actions of a device, in order."""
    rows = action_rows(plan)
    row = next(i for i, devices in enumerate(rows.devices) if device in devices)
    taken = range(rows.row_start[row], rows.row_start[row + 1])
    return [(KINDS[rows.kind[i]], int(rows.chunk[i]), int(rows.microbatch[i])) for i in taken]


@pytest.mark.proof
def test_a_rank_has_its_own_experts_alone(ranks: list[Any]) -> None:
    operators = [
        (o, run.count)
        for run in SPARSE_MODEL.runs
        for o in SPARSE_MODEL.blocks[run.block].operators
    ]
    sizes = [
        (o.kind is OperatorKind.GROUPED_LINEAR, count * prod(e.size for e in p.extents))
        for o, count in operators
        for p in o.parameters
    ]
    experts, whole = sum(size for own, size in sizes if own), sum(size for _, size in sizes)
    for found in ranks:
        assert found["held"]["experts on ep4"] == whole - experts + experts // 4
        assert found["held"]["experts under zero-3"] == found["held"]["experts on ep2 under zero-3"]


@in_both
@pytest.mark.parametrize(("name", "begins"), KEPT)
def test_each_engine_goes_on_from_the_others_checkpoint(
    ranks: list[Any], name: str, begins: str
) -> None:
    expected = [(r.loss, r.norm) for r in alone_reports(CASES[name].small, steps=LAST)]
    for found in ranks:
        reports = found["crossed"][name, begins]
        assert [r.step for r in reports] == list(range(1, LAST + 1))
        for report, (loss, norm) in zip(reports, expected, strict=True):
            assert abs(report.loss - loss) < CLOSE
            assert abs(report.norm - norm) < CLOSE * max(1.0, norm)


def test_what_cannot_run_is_refused_on_every_rank(ranks: list[Any]) -> None:
    for found in ranks:
        assert "the grid has 2 devices, 4 ranks run" in found["refused"]["world"]
        assert "[native.offload]" in found["refused"]["offload"]
        assert "[grid.zero]" in found["refused"]["legal"]
