"""The transport over gloo ranks gives what the in-process one gives, to the last bit; ranks that
fail end with a clear error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch.distributed has no gloo here", allow_module_level=True)

from shardwright.execute.transport.collectives_as_messages import as_messages
from shardwright.execute.transport.communication_record import CommunicationRecord, SentElements
from shardwright.execute.transport.in_process_transport import run_in_process
from tests.execute.request_ranks import CASES, GROUPED, start
from tests.execute.started import LONGEST_S
from tests.tiers import in_both


@pytest.fixture(scope="module")
def worlds(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[int, list[tuple[int | None, Any]]]]:
    """By number of ranks: (exit code, what was found) of each rank. Both worlds run at once."""
    started = {ranks: (tmp_path_factory.mktemp(f"ranks{ranks}"), ranks) for ranks in (2, 4)}
    processes = {ranks: start(ranks, folder) for ranks, (folder, _) in started.items()}
    found: dict[int, list[tuple[int | None, Any]]] = {}
    try:
        for ranks, own in processes.items():
            for process in own:
                process.join(LONGEST_S)
            files = [Path(started[ranks][0]) / f"rank{rank}" for rank in range(ranks)]
            results = [
                torch.load(file, weights_only=False) if file.exists() else None for file in files
            ]
            assert all("raised" not in result for result in results if result), "\n".join(
                str(r.get("raised")) for r in results if r
            )
            found[ranks] = [
                (process.exitcode, result) for process, result in zip(own, results, strict=True)
            ]
        yield found
    finally:
        for own in processes.values():
            for process in own:
                process.kill()


@pytest.fixture(scope="module")
def in_process() -> tuple[dict[tuple[str, int], dict[int, Any]], list[SentElements]]:
    trace = CommunicationRecord()
    found = {
        (name, seed): run_in_process(tasks_of(seed), trace=trace)
        for name, (tasks_of, seeds) in CASES.items()
        for seed in seeds
    }
    return found, trace.records


def merged(results: list[Any], what: str) -> dict[tuple[str, int], dict[int, Any]]:
    return {
        case: {d: t for one in results for d, t in one[what][0][case].items()}
        for case in results[0][what][0]
    }


@in_both
def test_groups_of_a_backend_give_what_one_process_gives_whatever_is_begun_beside(
    worlds: Any, in_process: Any
) -> None:
    """Ranks are of unlike many groups when one meets that they share."""
    _, results = zip(*worlds[4], strict=True)
    found = merged(list(results), "groups")
    assert found.keys() == {case for case in in_process[0] if case[0] in GROUPED}
    for case, devices in found.items():
        for device, tensors in devices.items():
            assert all(
                torch.equal(a, b) for a, b in zip(tensors, in_process[0][case][device], strict=True)
            ), (case, device)


def counted(records: list[SentElements]) -> list[tuple[object, ...]]:
    """Records in no order of devices."""
    return sorted(
        (r.device, r.kind, r.group, r.elements, r.sent, r.received, r.element, repr(r.key))
        for r in records
    )


@in_both
@pytest.mark.parametrize("what", ["cases", "fewer"])
def test_ranks_give_what_one_process_gives(worlds: Any, in_process: Any, what: str) -> None:
    codes, results = zip(*worlds[4], strict=True)
    assert codes == (0,) * 4
    found = merged(list(results), what)
    expected, records = in_process
    assert found.keys() == expected.keys()
    for case, devices in expected.items():
        assert found[case].keys() == devices.keys(), case
        for device, tensors in devices.items():
            assert len(found[case][device]) == len(tensors)
            assert all(
                torch.equal(a, b) and a.dtype == b.dtype
                for a, b in zip(found[case][device], tensors, strict=True)
            ), (case, device)
    assert counted([r for one in results for r in one[what][1]]) == counted(records)


@in_both
def test_requests_as_messages_give_what_groups_give(in_process: Any) -> None:
    for name, (tasks_of, seeds) in CASES.items():
        for seed in seeds:
            found = run_in_process(
                {d: as_messages(task, device=d) for d, task in tasks_of(seed).items()}
            )
            for device, tensors in in_process[0][name, seed].items():
                assert all(
                    torch.equal(a, b) for a, b in zip(found[device], tensors, strict=True)
                ), (name, seed, device)


def test_errors_name_what_went_wrong(worlds: Any) -> None:
    (_, first), (_, second) = worlds[2]
    errors = first["errors"]
    assert second["errors"]["silent"].startswith("rank 0 (devices 0) is gone"), (
        "who stops tells the others"
    )
    assert {name: message.rsplit("[", 1)[1].split("]")[0] for name, message in errors.items()} == {
        "shape": "run.mismatch",
        "dtype": "run.mismatch",
        "silent": "run.timeout",
        "deadlock": "run.deadlock",
        "world": "run.world",
        "left": "run.peer",
        "untaken": "run.untaken",
        "place": "run.place",
    }
    assert "device 0 for message 'm' from device 1" in errors["silent"]
    assert errors["left"].startswith(
        "rank 1 (devices 1) is gone: it ended before device 0 for message 'n' from device 1"
    )
    assert all("\n" not in message for message in errors.values())


def test_a_killed_rank_ends_the_others_with_its_name(worlds: Any) -> None:
    (code, first), (killed, _) = worlds[2]
    assert killed == -9
    assert code == 0, "the survivor went on to the end of its program"
    assert first["dying"].startswith("rank 1 (devices 1) is gone: Connection closed by peer")
    assert "[run.peer]" in first["dying"]
