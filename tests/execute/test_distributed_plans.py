"""Plans of every form train over gloo ranks, one a device, with the losses of a single process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch.distributed has no gloo here", allow_module_level=True)

from tests.execute.plan_ranks import (
    GROUPED,
    KILLED,
    RANKS,
    RESUMED,
    RESUMED_STEPS,
    SAVED,
    SERVING,
    STEPS,
    STOPPED,
    TRAINED,
    start,
)
from tests.execute.served import moving
from tests.execute.small_plans import PLANS, alone_reports
from tests.execute.started import finished
from tests.execute.traces import check_measured
from tests.tiers import in_both

CLOSE = 1e-6


@lru_cache(maxsize=8)
def _alone(whole: Any, batch: int) -> tuple[tuple[float, float], ...]:
    small = next(s for s in PLANS.values() if (s.whole, s.batch) == (whole, batch))
    return tuple((r.loss, r.norm) for r in alone_reports(small, steps=max(STEPS, RESUMED_STEPS)))


def alone(name: str) -> tuple[tuple[float, float], ...]:
    """(loss, norm) of every step in a single process without a split."""
    return _alone(PLANS[name].whole, PLANS[name].batch)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """What each rank found. The single process runs while they do."""
    folder = tmp_path_factory.mktemp("plans")
    with finished(
        start(folder), folder, meanwhile=lambda: [alone(name) for name in TRAINED], killed=KILLED
    ) as found:
        yield found


def test_no_rank_enters_a_network_before_all_have_connected(ranks: list[Any]) -> None:
    assert all(found["connected"] for found in ranks)


@in_both
@pytest.mark.parametrize(
    ("how", "name"),
    [*(("trained", name) for name in TRAINED), *(("grouped", name) for name in GROUPED)],
)
def test_losses_are_those_of_a_single_process(ranks: list[Any], how: str, name: str) -> None:
    expected = alone(name)[:STEPS]
    assert expected[0] != pytest.approx(expected[-1], abs=1e-3), (
        "training changes the loss, or what it is steep by"
    )
    trained = [found[how][name] for found in ranks if name in found[how]]
    assert len(trained) == PLANS[name].devices
    for reports in trained:
        assert [r.step for r in reports] == list(range(1, STEPS + 1))
        for report, (loss, norm) in zip(reports, expected, strict=True):
            assert abs(report.loss - loss) < CLOSE
            assert abs(report.norm - norm) < CLOSE * max(1.0, norm)


@in_both
@pytest.mark.parametrize("name", TRAINED)
def test_ranks_do_what_is_simulated(ranks: list[Any], name: str) -> None:
    trace = ranks[0]["traces"][name]
    assert all(found["traces"][name] == trace for found in ranks)
    check_measured(PLANS[name], trace)


def test_a_server_over_ranks_gives_what_one_process_gives(ranks: list[Any]) -> None:
    here = moving()
    seen: set[tuple[int, int]] = set()
    for found in ranks[:SERVING]:
        tokens, logits = found["served"]
        assert tokens == here.tokens
        for request, by_position in logits.items():
            for position, (one,) in by_position.items():
                assert torch.equal(one, here.logits[request][position][0])
                seen.add((request, position))
    assert seen == {
        (request, position)
        for request, by_position in here.logits.items()
        for position in by_position
    }
    assert all(found["served"] is None for found in ranks[SERVING:])


def test_a_run_goes_on_under_another_plan(ranks: list[Any]) -> None:
    expected = alone(SAVED)[:RESUMED_STEPS]
    assert expected == alone(RESUMED)[:RESUMED_STEPS]
    for found in ranks:
        reports = [*found["resumed"][SAVED], *found["resumed"][RESUMED]]
        assert [r.step for r in reports] == list(range(1, RESUMED_STEPS + 1))
        assert all(
            abs(r.loss - loss) < CLOSE for r, (loss, _) in zip(reports, expected, strict=True)
        )


def test_another_number_of_ranks_is_refused(ranks: list[Any]) -> None:
    for found in ranks:
        assert f"the plan has 2 devices, {RANKS} ranks run" in found["resumed"]["world"]
        assert "start 2 ranks" in found["resumed"]["world"]


def test_a_damaged_checkpoint_is_refused_on_every_rank(ranks: list[Any]) -> None:
    told = {found["resumed"]["damaged"] for found in ranks}
    assert len(told) == 1
    assert "__1_0.distcp has" in told.pop()


def test_a_rank_that_cannot_write_ends_all(ranks: list[Any]) -> None:
    told = {found["resumed"]["unwritable"] for found in ranks}
    assert len(told) == 1
    assert "rank 0: " in told.pop()


@pytest.mark.parametrize(
    ("what", "who"), [("stopped", STOPPED), ("stopped in groups", STOPPED), ("killed", KILLED)]
)
def test_a_rank_that_ends_in_the_middle_of_a_step_ends_all_others(
    ranks: list[Any], what: str, who: int
) -> None:
    said = {rank: found[what] for rank, found in enumerate(ranks) if rank != who}
    assert len(said) == RANKS - 1
    if what == "stopped in groups":
        # Members of a group that breaks off are not told which of them began.
        assert all("[run.peer]" in message and "\n" not in message for message in said.values())
        return
    assert all(
        "is gone" in message and "[run.peer]" in message and "\n" not in message
        for message in said.values()
    )
    assert any(
        message.startswith(f"rank {who} (devices {who}) is gone") for message in said.values()
    )


def test_a_rank_that_stops_says_why(ranks: list[Any]) -> None:
    assert ranks[STOPPED]["stopped"].startswith("this rank's data end here [run.data]")
