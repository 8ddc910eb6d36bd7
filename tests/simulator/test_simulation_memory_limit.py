"""A simulation that this machine has no memory for is refused before it is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.api.request_to_problem import problem_of
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.errors import ResourceError
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.search.search_request import Request
from shardwright.simulator import simulation_memory_limit as memory_limit
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.simulator.simulation_memory_limit import (
    ACTION_BYTES,
    MOST_BYTES,
    memory_left,
    num_actions,
    require_room,
)
from shardwright.strategy.text.grid_notation import parse_grid

ASKED = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=128, global_batch=8)


def test_a_million_microbatches_are_refused_with_what_they_take() -> None:
    many = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=128, global_batch=1_000_000)
    with pytest.raises(ResourceError) as refused:
        simulation(many, strategy="pp8")
    assert refused.value.exit_code == 10
    assert "16,000,000 actions takes 13.41 GiB" in refused.value.message
    assert "microbatches" in refused.value.hint


def test_what_is_left_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "memory_left", lambda: 100 * ACTION_BYTES)
    require_room(100, action_bytes=ACTION_BYTES, doing="it")
    with pytest.raises(ResourceError):
        require_room(101, action_bytes=ACTION_BYTES, doing="it")
    monkeypatch.setattr(memory_limit, "memory_left", lambda: 10 * MOST_BYTES)
    with pytest.raises(ResourceError):
        require_room(MOST_BYTES, action_bytes=2, doing="it")


@pytest.mark.parametrize("strategy", ["pp8", "pp4 dp2", "pp4 vpp2 dp2", "pp4 dp2 schedule=gpipe"])
def test_actions_are_those_of_the_rows(strategy: str) -> None:
    plan = plan_of_grid(problem_of(ASKED), parse_grid(strategy, devices=8))
    assert num_actions(plan, {}) == len(action_rows(plan).kind)


def test_memory_left_is_that_of_the_machine_or_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 3000 kB\n")
    monkeypatch.setattr(memory_limit, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory_limit, "_GROUP", tmp_path)
    assert memory_left() == 3000 * 1024
    for name, text in (
        ("max", "1000000"),
        ("current", "600000"),
        ("stat", "anon 1\nfile 100000\n"),
    ):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory_left() == 500_000
    (tmp_path / "memory.max").write_text("max")
    assert memory_left() == 3000 * 1024
