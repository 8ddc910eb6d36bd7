"""Against Dynamo's offline replay (1.6.1, pip install --no-deps ai-dynamo ai-dynamo-runtime), a
simulator of these schedulers by others."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Poisson,
    ServingJob,
    SharedPrefix,
)
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.latency_and_throughput_metrics import metric_spread, metrics
from shardwright.serving.simulation.python_simulation_loop import serve_requests_in_python
from shardwright.serving.traffic.draw_requests import draw_requests
from tests.serving.dynamo import Workload, interpreter, law, replay
from tests.serving.random_runs import constant, lengths, scheduler

pytestmark = pytest.mark.skipif(
    not interpreter(),
    reason="Dynamo is not installed: SHARDWRIGHT_DYNAMO_PYTHON names a Python that has it",
)

_SGLANG: Final = "https://github.com/sgl-project/sglang/blob/v0.5.9/python/sglang/srt/managers/schedule_policy.py"
CUT: Final = (
    f"{_SGLANG}: PrefillAdder cuts the last prompt that the chunk's rest does not hold; the replay"
    " lets it wait"
)
_SCHEDULER: Final = (
    "https://github.com/sgl-project/sglang/blob/v0.5.9/python/sglang/srt/managers/scheduler.py"
)
FULL: Final = (
    f"{_SCHEDULER}: once batch_is_full nobody is let in until decode sees one leave; in the replay"
    " at once"
)
AHEAD: Final = (
    "https://github.com/sgl-project/sglang/blob/v0.5.9/python/sglang/srt/managers/schedule_batch.py:"
    " decode takes the slot of a token when it is fed (prepare_for_decode); of the shortest"
    " answers the longest prompt goes (retract_decode); the replay takes the slot a token earlier"
    f" and the first of them. And {FULL}"
)
TENS: Final = (Poisson(per_second=10, requests=300), lengths((200, 3000), (20, 300)))


def workload(
    name: str,
    arrivals: ClosedLoop | Poisson,
    size: Any,
    own: Any,
    *,
    prefix: SharedPrefix | None = None,
    **more: Any,
) -> Workload:
    requests = draw_requests(
        ServingJob(arrivals=arrivals, lengths=size, prefix=prefix), block_tokens=own.block_tokens
    )
    return Workload(name=name, requests=requests, scheduler=own, **more)


def loop(concurrency: int, requests: int) -> ClosedLoop:
    return ClosedLoop(concurrency=concurrency, requests=requests)


def _vllm() -> list[Workload]:
    def own(**changes: Any) -> Any:
        return scheduler(Batching.MIXED, admission=Admission.PROMPT, **changes)

    shared, tight = SharedPrefix(groups=5, tokens=800), {"blocks": 1500}
    medium, long = lengths((500, 1500), (200, 400)), lengths((1000, 2000), (100, 200))
    return [
        workload("closed loop of 1", loop(1, 40), lengths((800, 1024), (80, 100)), own()),
        workload("closed loop of 32", loop(32, 320), lengths((800, 1024), (80, 100)), own()),
        workload(
            "closed loop of 128, 64 run", loop(128, 640), lengths((100, 2000), (10, 300)), own()
        ),
        workload(
            "small budget", loop(32, 200), lengths((800, 1024), (80, 100)), own(token_budget=256)
        ),
        workload(
            "large budget", loop(48, 300), lengths((800, 1024), (80, 100)), own(token_budget=16384)
        ),
        workload("one token each", loop(16, 300), lengths((100, 4000), (1, 1)), own()),
        workload("poisson", *TENS, own()),
        workload(
            "poisson, near saturation",
            Poisson(per_second=16, requests=400),
            lengths((200, 2000), (20, 300)),
            own(),
        ),
        workload(
            "whole prompts",
            Poisson(per_second=20, requests=300),
            lengths((200, 1500), (20, 300)),
            own(chunked_prefill=False),
        ),
        workload("preemption", loop(32, 320), medium, own(**tight)),
        workload(
            "preemption, blocks of 4", loop(32, 200), medium, own(blocks=6000, block_tokens=4)
        ),
        workload("preemption, small budget", loop(32, 200), medium, own(token_budget=512, **tight)),
        workload(
            "preemption, prefix cache", loop(32, 320), medium, own(prefix_cache=True, **tight)
        ),
        workload(
            "shared prefixes",
            Poisson(per_second=12, requests=300),
            long,
            own(prefix_cache=True),
            prefix=shared,
        ),
        workload(
            "shared prefixes, evicted",
            loop(48, 300),
            long,
            own(prefix_cache=True, **tight),
            prefix=SharedPrefix(groups=20, tokens=800),
        ),
        workload(
            "two workers",
            Poisson(per_second=24, requests=400),
            lengths((200, 2000), (20, 300)),
            own(),
            workers=2,
        ),
        workload(
            "four workers, closed loop",
            loop(64, 400),
            lengths((200, 2000), (20, 300)),
            own(),
            workers=4,
        ),
    ]


def _sglang() -> list[Workload]:
    def own(**changes: Any) -> Any:
        return scheduler(
            Batching.PREFILL_FIRST, **{"token_budget": 8192, "prompt_tokens": 16384} | changes
        )

    shared = SharedPrefix(groups=5, tokens=800)
    return [
        workload("closed loop of 1", loop(1, 40), lengths((800, 1024), (80, 100)), own()),
        workload("closed loop of 8", loop(8, 100), lengths((800, 1024), (80, 100)), own()),
        workload("closed loop of 32", loop(32, 320), lengths((800, 1024), (80, 100)), own()),
        workload(
            "closed loop of 32, no cut",
            loop(32, 320),
            lengths((800, 1024), (80, 100)),
            own(token_budget=65536, prompt_tokens=65536),
        ),
        workload(
            "128, 64 run",
            loop(128, 640),
            lengths((100, 2000), (10, 300)),
            own(token_budget=131072, prompt_tokens=131072),
            waived=FULL,
        ),
        workload("poisson", *TENS, own(token_budget=65536, prompt_tokens=65536)),
        workload(
            "long prompts in chunks",
            Poisson(per_second=3, requests=200),
            lengths((5000, 20000), (20, 300)),
            own(),
            waived=CUT,
        ),
        workload(
            "retraction",
            loop(32, 320),
            lengths((500, 1500), (200, 400)),
            own(token_budget=65536, prompt_tokens=65536, blocks=1500),
            waived=AHEAD,
        ),
        workload(
            "shared prefixes",
            Poisson(per_second=12, requests=300),
            lengths((1000, 2000), (100, 200)),
            own(prefix_cache=True),
            prefix=shared,
        ),
    ]


def _tensorrt_llm() -> list[Workload]:
    def own(**changes: Any) -> Any:
        return scheduler(
            Batching.IN_FLIGHT, **{"token_budget": 4096, "chunked_prefill": False} | changes
        )

    shared = SharedPrefix(groups=5, tokens=800)
    return [
        workload("closed loop of 1", loop(1, 40), lengths((800, 1024), (80, 100)), own()),
        workload("closed loop of 32", loop(32, 320), lengths((800, 1024), (80, 100)), own()),
        workload("128, 64 run", loop(128, 640), lengths((100, 2000), (10, 300)), own()),
        workload("poisson", *TENS, own()),
        workload("reserved", loop(32, 320), lengths((500, 1500), (200, 400)), own(blocks=1500)),
        workload(
            "reserved, poisson",
            Poisson(per_second=6, requests=200),
            lengths((500, 1500), (200, 400)),
            own(blocks=1500),
        ),
        workload(
            "chunks",
            Poisson(per_second=3, requests=200),
            lengths((2000, 8000), (20, 300)),
            own(chunked_prefill=True),
        ),
        workload(
            "shared prefixes",
            Poisson(per_second=12, requests=300),
            lengths((1000, 2000), (100, 200)),
            own(prefix_cache=True),
            prefix=shared,
        ),
    ]


WORKLOADS: Final = [
    *(("vllm", w, 0.005) for w in _vllm()),
    *(("sglang", w, 0.02) for w in _sglang()),
    *(("tensorrt-llm", w, 0.02) for w in _tensorrt_llm()),
]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("dynamo")
    return cache(lambda: replay([workload for _, workload, _ in WORKLOADS], folder))


def test_there_are_thirty() -> None:
    assert len(WORKLOADS) >= 30


@pytest.mark.parametrize(
    "number", range(len(WORKLOADS)), ids=[f"{engine}: {w.name}" for engine, w, _ in WORKLOADS]
)
def test_agrees(number: int, replayed: Any) -> None:
    _, workload, tolerance = WORKLOADS[number]
    ours = serve_requests_in_python(
        workload.requests,
        constant(1.0),
        Fleet(scheduler=workload.scheduler, workers=workload.workers),
        timing=law(workload.workers),
    )
    seen, theirs = metrics(workload.requests, ours), replayed()[number]
    ttft, tpot = metric_spread(theirs.ttft), metric_spread(theirs.tpot)
    rate = workload.requests.outputs.sum() / theirs.seconds
    found = {
        "TTFT mean": seen.ttft.mean / ttft.mean,
        "TTFT p50": seen.ttft.p50 / ttft.p50,
        "TTFT p99": seen.ttft.p99 / ttft.p99,
        "tokens/s": seen.tokens_per_second / rate,
    }
    if len(theirs.tpot):
        found |= {
            "TPOT mean": seen.tpot.mean / tpot.mean,
            "TPOT p50": seen.tpot.p50 / tpot.p50,
            "TPOT p99": seen.tpot.p99 / tpot.p99,
        }
    off = {
        name: round(100 * (ratio - 1), 3)
        for name, ratio in found.items()
        if not np.isclose(ratio, 1.0, rtol=tolerance, atol=0)
    }
    percent = {name: round(100 * (ratio - 1), 3) for name, ratio in found.items()}
    print(workload.name, percent, int(ours.preempted.sum()))  # noqa: T201
    if workload.waived:
        assert off, f"agrees: {workload.waived} is no reason any more"
        pytest.skip(f"{off} %: {workload.waived}")
    assert not off
