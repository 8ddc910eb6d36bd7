"""Which device a rank takes, and what carries its tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import UsageError
from shardwright.execute.launch.rank_device_and_backend import backend_of, own_device
from shardwright.execute.launch.run_options_and_report import AUTO, GROUPS, MESSAGES

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """A host of four GPUs; those that were made the current one."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


@pytest.mark.parametrize(("rank", "index"), [("0", 0), ("3", 3), ("5", 1)])
def test_ranks_of_a_host_take_its_gpus_in_turn(
    four: list[torch.device], rank: str, index: int
) -> None:
    assert (
        own_device("", {"LOCAL_RANK": rank})
        == own_device("cuda", {"LOCAL_RANK": rank})
        == torch.device("cuda", index)
    )
    assert four == [torch.device("cuda", index)] * 2


def test_a_processor_may_be_asked_for(four: list[torch.device]) -> None:
    assert own_device("cpu", {}) == CPU
    assert not four


def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_device("", {}) == CPU
    with pytest.raises(UsageError, match="there is no CUDA device here"):
        own_device("cuda", {})
    with pytest.raises(UsageError, match="'cuda:1' is no device"):
        own_device("cuda:1", {})


@pytest.mark.parametrize(
    ("transport", "on", "ranks", "backend"),
    [
        (AUTO, CPU, "8", "gloo"),
        (MESSAGES, CPU, "8", ""),
        (AUTO, GPU, "4", "nccl"),
        (AUTO, GPU, "5", ""),
        (GROUPS, GPU, "4", "nccl"),
        (MESSAGES, GPU, "4", ""),
    ],
)
def test_groups_meet_where_each_rank_has_a_device(
    four: list[torch.device], transport: str, on: torch.device, ranks: str, backend: str
) -> None:
    assert backend_of(transport, on, {"LOCAL_WORLD_SIZE": ranks}) == backend


def test_ranks_that_share_a_gpu_are_no_group(four: list[torch.device]) -> None:
    with pytest.raises(UsageError, match=r"share a GPU.*--transport messages"):
        backend_of(GROUPS, GPU, {"LOCAL_WORLD_SIZE": "5"})
