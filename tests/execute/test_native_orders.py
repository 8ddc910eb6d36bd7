"""PyTorch parses our CSV into our actions, for every schedule that it can hold, and sends and
receives in one order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not available here", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.errors import StrategyError
from shardwright.execute.native.private_torch_api import (
    create_pipeline_runtime,
    keep_forward_actions,
)
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.orders.write_pytorch_schedule_csv import schedule_csv
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.format_action import format_action
from shardwright.schedules.schedule_registry import SCHEDULES, schedule
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import actions_of
from shardwright.strategy.plan.plan import Plan
from tests.execute.small_plans import PLANS
from tests.schedules.csv_reader import parse_action
from tests.strategies import dense_model

RANKS, MICROBATCHES = 4, 8
HELD = [name for name in SCHEDULES if schedule(name).placement.lanes == 1]


@pytest.fixture(scope="module", autouse=True)
def _ranks() -> Iterator[None]:
    """A process group that sends nothing: this process is rank 0 of four."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def _plan(name: str) -> Plan:
    several = {"hanayo": 4, "interleaved-1f1b": 2, "breadth-first": 2, "looped-bfs": 2}
    chunks = several.get(name, 2 if schedule(name).placement is ChunkPlacement.WAVE else 1)
    return plan_of(
        Grid(pp=RANKS, vpp=chunks, schedule=name),
        model=dense_model(layers=16),
        global_batch=MICROBATCHES,
    )


def _loaded(plan: Plan) -> Any:
    chunks = len(plan.lanes[0].stages)
    mine = [c for c, stage in enumerate(plan.lanes[0].stages) if stage.base == 0]
    stages = [PipelineStage(torch.nn.Linear(1, 1), c, chunks, torch.device("cpu")) for c in mine]
    return create_pipeline_runtime(
        stages,
        csv=schedule_csv(plan),
        microbatches=plan.lanes[0].microbatches,
        loss=lambda output, target: output,
    )


def _rows(plan: Plan) -> list[list[str]]:
    """Every rank's actions, pairs taken apart."""
    rows = action_rows(plan)
    texts = [
        f"{c}{KINDS[k]}{m}" for c, k, m in zip(rows.chunk, rows.kind, rows.microbatch, strict=True)
    ]
    return [texts[a:b] for a, b in zip(rows.row_start[:-1], rows.row_start[1:], strict=True)]


@pytest.mark.parametrize("name", HELD)
def test_torch_reads_our_actions(name: str) -> None:
    plan = _plan(name)
    runtime = _loaded(plan)
    parsed = [
        [str(a) for a in runtime.pipeline_order[rank] if a is not None] for rank in range(RANKS)
    ]
    apart = [
        [format_action(a) for word in row for a in actions_of(parse_action(word))] for row in parsed
    ]
    assert apart == _rows(plan)
    assert runtime.stage_index_to_group_rank == {
        c: stage.base for c, stage in enumerate(plan.lanes[0].stages)
    }


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("name", HELD)
def test_messages_are_received_as_they_are_sent(name: str, forward: bool) -> None:
    """Messages have no tags: what a rank sends to another comes in that order, so the other must
    ask for them in that order.

    With that a pipeline ends if its actions do, which `schedules.entries.slots` has shown before
    there is a text.
    """
    runtime = keep_forward_actions(_loaded(_plan(name))) if forward else _loaded(_plan(name))
    rank_of = runtime.stage_index_to_group_rank
    sent: dict[tuple[int, int], list[str]] = {}
    received: dict[tuple[int, int], list[str]] = {}
    for rank, actions in runtime.pipeline_order_with_comms.items():
        for action in actions:
            kind, stage = action.computation_type.value, action.stage_index
            step = 1 if kind.endswith("_F") else -1
            if kind.startswith("SEND_"):
                sent.setdefault((rank, rank_of[stage + step]), []).append(
                    f"{kind[-1]}{stage + step}.{action.microbatch_index}"
                )
            elif kind.startswith("RECV_"):
                received.setdefault((rank_of[stage - step], rank), []).append(
                    f"{kind[-1]}{stage}.{action.microbatch_index}"
                )
    assert sent == received
    borders = sum(rank_of[c] != rank_of[c + 1] for c in range(len(rank_of) - 1))
    assert sum(map(len, sent.values())) == (1 if forward else 2) * borders * MICROBATCHES
    kinds = {
        action.computation_type.value
        for actions in runtime.pipeline_order_with_comms.values()
        for action in actions
    }
    assert not forward or kinds == {"F", "SEND_F", "RECV_F", "UNSHARD", "RESHARD"}


def test_a_table_of_ones_own_is_read() -> None:
    plan = PLANS["found order"].plan
    runtime = _loaded(plan)
    assert [
        [str(a) for a in runtime.pipeline_order[rank] if a is not None] for rank in range(RANKS)
    ] == _rows(plan)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in HELD])
def test_two_lanes_are_refused(name: str) -> None:
    with pytest.raises(StrategyError, match=r"no 2 lanes \[native.schedule\]"):
        schedule_csv(_plan(name))


def test_slices_and_recompute_actions_are_refused() -> None:
    sliced = plan_of(
        Grid(pp=4, slices=2, schedule="seq-1f1b"), model=dense_model(layers=4), global_batch=8
    )
    with pytest.raises(StrategyError, match=r"slices of a sequence \[native.schedule\]"):
        schedule_csv(sliced)
    with pytest.raises(StrategyError, match="no recompute action"):
        schedule_csv(PLANS["recomputed early"].plan)
