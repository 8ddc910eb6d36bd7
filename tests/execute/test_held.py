"""Memory that a run holds: what is asked for and not given back, not what an allocator keeps."""

from __future__ import annotations

import gc
import sys
from time import sleep

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.launch import watch_peak_memory_of_process as peak_memory
from shardwright.execute.launch.watch_peak_memory_of_process import EVERY_S, watch_memory

SIZE = 64 * 2**20


@pytest.mark.skipif(
    peak_memory._allocated_bytes_reader() is None,
    reason="the C library does not say what is in use",
)
def test_what_was_given_back_is_not_counted_twice() -> None:
    gc.collect()  # What a search for cycles frees meanwhile would be taken off.
    with watch_memory(torch.device("cpu")) as found:
        for _ in range(3):
            tensor = torch.ones(SIZE // 4)
            sleep(5 * EVERY_S)
            del tensor
    assert SIZE <= found.most < 1.5 * SIZE


def test_without_an_answer_it_is_what_the_process_grew_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "_allocated_bytes_reader", lambda: None)
    before = peak_memory._max_resident_bytes()
    with watch_memory(torch.device("cpu")) as found:
        tensor = torch.ones((before + SIZE) // 4 if before < 2**30 else SIZE // 4)
    assert found.most == found.grown
    assert tensor.numel()
    assert sys.platform == "darwin" or found.grown >= 0
