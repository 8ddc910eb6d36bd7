"""The command of a request, read by `plan`, is the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.api.guide.plan_command_line import plan_words
from shardwright.api.searches import grid_search
from shardwright.cli.main import run
from shardwright.search.search_request import Request

REQUESTS = st.builds(
    Request,
    model=st.just("llama-3.1-8b"),
    cluster=st.just("h100-sxm:8"),
    seq_len=st.integers(1, 10**6),
    global_batch=st.integers(1, 10**6),
    runtime=st.sampled_from(["", "megatron-core-0.12 dispatcher=flex"]),
    precision=st.sampled_from(["", "bf16", "fp8"]),
    train=st.sampled_from(["", "lora:r16"]),
    max_devices=st.integers(0, 100),
    use_all=st.booleans(),
    dropout=st.booleans(),
    headroom=st.sampled_from([0.0, 0.05, 0.1, 0.125]),
    reserve_fraction=st.sampled_from([0.0, 0.07]),
    expert_imbalance=st.sampled_from([1.0, 1.25]),
    image_tokens=st.integers(0, 2),
    encoder_len=st.integers(0, 2),
    gradient_wire=st.sampled_from(["", "bf16"]),
    pins=st.sampled_from([(), (("tp", ("4", "8")), ("recompute", ("none",)))]),
    excludes=st.sampled_from([(), (("zero", ("3",)),)]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=REQUESTS)
def test_the_words_are_read_as_the_request(
    monkeypatch: pytest.MonkeyPatch, request: Request
) -> None:
    seen: list[Request] = []

    def capture(read: Request, **_: Any) -> None:
        seen.append(read)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(grid_search, "plan", capture)
        run(plan_words(request)[1:])
    (read,) = seen
    precision = "" if request.precision == "bf16" else request.precision
    assert replace(read, precision=precision) == replace(request, precision=precision)
