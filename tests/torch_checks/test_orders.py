"""Our orders are PyTorch's where PyTorch has the schedule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
schedules: Any = pytest.importorskip("torch.distributed.pipelining.schedules")

from shardwright.schedules.action_table_to_plan_entries_and_time_slots import row_entries
from shardwright.schedules.schedule_registry import schedule
from shardwright.strategy.plan.pipeline_order import actions_of

_LETTERS = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}


def theirs(name: str, ranks: int, microbatches: int, rank: int) -> list[tuple[str, ...]]:
    """Rank `rank`'s row of PyTorch's class called `name`, communication and idle slots left out."""
    rule = getattr(schedules, name)
    shape = SimpleNamespace(
        pp_group_size=ranks,
        _n_microbatches=microbatches,
        num_stages=2 * ranks,
        _stages=(None, None),
    )
    row = rule._calculate_single_rank_operations(shape, rank)
    told = []
    for action in row:
        if action is None:
            continue
        parts = action.sub_actions if getattr(action, "sub_actions", None) else (action,)
        told.append(
            tuple(
                f"{part.stage_index}{_LETTERS[part.computation_type.name]}{part.microbatch_index}"
                for part in parts
            )
        )
    return told


@pytest.mark.parametrize(
    ("ours", "name", "least"),
    [
        ("looped-bfs", "ScheduleLoopedBFS", 1),
        ("zb-v", "ScheduleZBVZeroBubble", 1),
        ("dualpipe-v", "ScheduleDualPipeV", 2),
    ],
)
def test_rows_are_pytorchs(ours: str, name: str, least: int) -> None:
    if not hasattr(schedules, name):
        pytest.skip(f"this PyTorch has no {name}")
    for ranks in (1, 2, 3, 4, 7):
        for microbatches in {least * ranks, 2 * ranks + 1, 4 * ranks + 2}:
            table = schedule(ours).table(
                num_ranks=ranks, chunks_per_rank=2, num_microbatches=microbatches
            )
            for rank in range(ranks):
                row = [
                    tuple(
                        f"{action.chunk}{action.kind}{action.microbatch}"
                        for action in actions_of(entry)
                    )
                    for entry in row_entries(table, rank=rank)
                ]
                assert row == theirs(name, ranks, microbatches, rank), (ranks, microbatches, rank)
