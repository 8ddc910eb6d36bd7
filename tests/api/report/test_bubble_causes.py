"""Causes of idle time: they add up to it exactly, and a change of one cause moves that cause."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.report.bubble_causes import IdleCause, idle_pieces
from shardwright.api.request_to_problem import problem_of
from shardwright.arrays import IntArray
from shardwright.program.lowered_program import Program
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.search.search_request import Request
from shardwright.simulator.event_simulation_inputs import plan_kernel_tasks
from shardwright.simulator.kernel.event_kernel import simulate
from shardwright.simulator.simulate_plan import Timeline, lower, plan_of_grid, simulate_plan
from shardwright.strategy.text.grid_notation import parse_grid
from tests.tiers import examples

FORWARD, BACKWARD = 1_000_003, 2_000_017
"""Picoseconds of actions; primes, so that rounding would show."""
GRIDS = (
    "pp4 mbs1 zero0 recompute=full",
    "pp4 vpp2 mbs1 zero0 schedule=interleaved-1f1b recompute=full",
    "pp4 mbs1 zero0 schedule=gpipe recompute=full",
)


@cache
def lowered(text: str, cluster: str = "h100-sxm:4") -> tuple[Program, tuple[Any, ...]]:
    """Program and kernel inputs of a grid of Llama 2 7B with 16 sequences a step."""
    problem = problem_of(
        Request(model="llama-2-7b", cluster=cluster, seq_len=2048, global_batch=16)
    )
    plan = plan_of_grid(problem, parse_grid(text, devices=problem.cluster.num_devices))
    program, costs = lower(problem, plan)
    return program, plan_kernel_tasks(problem, program, costs)


def timeline_of(
    text: str, *, stage_factors: dict[int, int] | None = None, message: int = 0, reduction: int = 0
) -> tuple[Program, Timeline]:
    """Timeline of a grid whose tasks have given picoseconds and share nothing.

    Args:
        stage_factors: factor on the actions of a row of the order.
        message, reduction: picoseconds of each message, and of each gradient reduction.
    """
    program, inputs = lowered(text)
    kind = program.templates.kind[program.instances.template]
    row = np.array([k.row for k in program.classes])[program.instances.klass]
    work = np.zeros(len(kind), dtype=np.int64)
    work[kind == int(TaskKind.F)] = FORWARD
    template = program.instances.template
    piece, pieces = program.templates.piece[template], program.templates.pieces[template]
    backward = kind == int(TaskKind.B)
    work[backward] = (BACKWARD * (piece + 1) // pieces - BACKWARD * piece // pieces)[backward]
    for stage, factor in (stage_factors or {}).items():
        work[(row == stage) & (kind <= int(TaskKind.R))] *= factor
    work[(kind == int(TaskKind.SEND_F)) | (kind == int(TaskKind.SEND_B))] = message
    work[(kind == int(TaskKind.REDUCE)) | (kind == int(TaskKind.REDUCE_TIED))] = reduction
    no_uses = np.zeros(len(kind) + 1), np.zeros(0), np.zeros(0), 0
    start, finish, finished = simulate(work, *inputs[1:4], *no_uses)
    assert finished == len(kind)
    return program, Timeline(start=start, finish=finish, work=work)


def idle_by_class(program: Program, timeline: Timeline) -> list[Counter[int]]:
    """Picoseconds of each cause, for each class; they are checked to be its idle time."""
    pieces = idle_pieces(program, timeline)
    kind = program.templates.kind[program.instances.template]
    computes = (kind <= int(TaskKind.R)) | (kind == int(TaskKind.STEP))
    found = []
    for number in range(len(program.classes)):
        own = pieces.klass == number
        causes: Counter[int] = Counter()
        for cause, duration in zip(
            pieces.cause[own].tolist(), pieces.duration[own].tolist(), strict=True
        ):
            assert duration > 0
            causes[cause] += duration
        tasks = computes & (program.instances.klass == number)
        busy = int((timeline.finish - timeline.start)[tasks].sum())
        assert busy + causes.total() == int(timeline.finish.max())
        require_in_gaps(pieces.start[own], pieces.duration[own], tasks, timeline)
        found.append(causes)
    return found


def require_in_gaps(start: IntArray, duration: IntArray, tasks: Any, timeline: Timeline) -> None:
    """Assert that pieces overlap neither each other nor the tasks."""
    begins = np.concatenate([start, timeline.start[tasks]])
    ends = np.concatenate([start + duration, timeline.finish[tasks]])
    order = np.lexsort((ends, begins))
    assert (begins[order][1:] >= ends[order][:-1]).all()


@pytest.mark.parametrize("text", GRIDS)
def test_a_balanced_pipeline_only_fills_and_drains(text: str) -> None:
    """Interleaved chunks also wait where their order has a backward before they are full."""
    allowed = {IdleCause.WARM_UP, IdleCause.COOL_DOWN}
    if "vpp" in text:
        allowed |= {IdleCause.ORDER}
    for causes in idle_by_class(*timeline_of(text)):
        assert set(causes) <= allowed
        assert causes.total() > 0


def test_the_last_device_waits_for_three_forwards_and_then_for_three_backwards() -> None:
    first, *_, last = idle_by_class(*timeline_of(GRIDS[0]))
    assert last[IdleCause.WARM_UP] == 3 * FORWARD
    assert last[IdleCause.COOL_DOWN] == 3 * BACKWARD
    assert first.total() == last.total() == 3 * (FORWARD + BACKWARD)


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize("factor", [2, 5])
def test_a_slow_stage_is_the_imbalance_of_that_stage(slow: int, factor: int) -> None:
    balanced = idle_by_class(*timeline_of(GRIDS[0]))
    for number, causes in enumerate(
        idle_by_class(*timeline_of(GRIDS[0], stage_factors={slow: factor}))
    ):
        assert set(causes) <= {
            IdleCause.WARM_UP, IdleCause.COOL_DOWN, IdleCause.IMBALANCE + slow
        }  # fmt: skip
        others = causes - Counter({IdleCause.IMBALANCE + slow: causes[IdleCause.IMBALANCE + slow]})
        assert all(others[cause] <= balanced[number][cause] for cause in others)
        if number != slow:
            # At least 13 of 16 microbatches wait for the slow stage, the others fill and drain.
            added = causes.total() - balanced[number].total()
            assert added >= 13 * (factor - 1) * (FORWARD + BACKWARD)
            assert causes[IdleCause.IMBALANCE + slow] >= added


@pytest.mark.parametrize("fast", range(4))
def test_a_stage_with_less_work_waits_because_of_itself(fast: int) -> None:
    others = {stage: 3 for stage in range(4) if stage != fast}
    causes = idle_by_class(*timeline_of(GRIDS[0], stage_factors=others))[fast]
    assert causes[IdleCause.IMBALANCE + fast] == 15 * 2 * (FORWARD + BACKWARD)
    assert not any(causes[IdleCause.IMBALANCE + stage] for stage in others)


def test_slow_links_are_messages() -> None:
    without = idle_by_class(*timeline_of(GRIDS[0]))
    for number, causes in enumerate(idle_by_class(*timeline_of(GRIDS[0], message=400_009))):
        assert set(causes) <= {IdleCause.WARM_UP, IdleCause.COOL_DOWN, IdleCause.MESSAGE}
        added = causes.total() - without[number].total()
        assert causes[IdleCause.MESSAGE] == added > 0


@pytest.mark.parametrize("slow", range(4))
def test_messages_beside_a_slow_stage_are_what_their_absence_would_save(slow: int) -> None:
    """A message that is in flight while a slow stage computes costs nothing, and is not named.

    The step without messages may have other longest chains, hence a quarter of tolerance.
    """
    factors = {slow: 5}
    without = idle_by_class(*timeline_of(GRIDS[0], stage_factors=factors))
    found = idle_by_class(*timeline_of(GRIDS[0], stage_factors=factors, message=100_003))
    for causes, before in zip(found, without, strict=True):
        saved = causes.total() - before.total()
        assert causes[IdleCause.MESSAGE] == pytest.approx(saved, rel=0.25)
        assert saved > 0


def test_reductions_that_nothing_hides_are_named() -> None:
    for causes in idle_by_class(*timeline_of(GRIDS[0], reduction=7_000_003)):
        assert causes[IdleCause.REDUCTION] > 0
        assert set(causes) <= {IdleCause.WARM_UP, IdleCause.COOL_DOWN, IdleCause.REDUCTION}


@examples(25)
@given(
    text=st.sampled_from(GRIDS),
    factors=st.dictionaries(st.integers(0, 3), st.integers(1, 6)),
    message=st.integers(0, 5_000_000),
    reduction=st.integers(0, 50_000_000),
)
def test_causes_add_up_exactly(
    text: str, factors: dict[int, int], message: int, reduction: int
) -> None:
    timeline = timeline_of(text, stage_factors=factors, message=message, reduction=reduction)
    for causes in idle_by_class(*timeline):
        if message == 0:
            assert causes[IdleCause.MESSAGE] == 0


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ("h100-sxm:16", "tp2 sp pp4 vpp2 dp2 mbs1 zero1 schedule=interleaved-1f1b"),
        ("h100-sxm:8", "tp2 sp dp4 mbs1 zero3"),
        ("h100-sxm:1", "zero0 recompute=full"),
    ],
)
def test_causes_of_real_steps_add_up_exactly(cluster: str, text: str) -> None:
    """With shared links and devices, gathers, reductions in pieces and updates."""
    problem = problem_of(
        Request(model="llama-2-7b", cluster=cluster, seq_len=2048, global_batch=16)
    )
    plan = plan_of_grid(problem, parse_grid(text, devices=problem.cluster.num_devices))
    simulated = simulate_plan(problem, plan)
    idle_by_class(simulated.program, simulated.timeline)
