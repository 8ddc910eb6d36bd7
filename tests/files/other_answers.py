"""JSON documents of comparisons, advice and serving results of small problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardwright.api.compare_strategies_and_clusters import compare
from shardwright.api.launches.launch_advice import advise, read_request
from shardwright.api.request_to_problem import load_cluster
from shardwright.api.simulate_deployment import serve_simulate
from shardwright.report.screens.launch_advice_screen import advice_document
from shardwright.report.screens.strategy_comparison_screen import comparison_document
from shardwright.report.serving.deployment_screen import serving_document
from shardwright.search.search_request import Request
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from tests.files.saved import REQUEST
from tests.frameworks.megatron.test_read import LLAMA, SPLIT
from tests.tiers import many

ROOT: Final = Path(__file__).resolve().parents[2]
STRATEGIES: Final = ("tp2 sp dp8 mbs1 zero1", "pp2 dp8 mbs1 zero1", "dp16 mbs2 zero3")
LARGE: Final = replace(REQUEST, model="llama-3.1-70b", cluster="t4:4", global_batch=4, precision="")
SERVED: Final = ServingRequest(
    model="llama-3.2-1b",
    cluster="h100-sxm:1",
    isl="256",
    osl="8-16",
    concurrency=4,
    requests=12,
    slo="ttft=500ms,tpot=30ms,share=0.9",
)


def comparison(
    request: Request = REQUEST,
    *,
    clusters: tuple[str, ...] = (REQUEST.cluster,),
    strategies: tuple[str, ...] = STRATEGIES,
    tokens: float = 0.0,
) -> dict[str, Any]:
    """What `compare` prints."""
    rows = compare(request, clusters=clusters, strategies=strategies, tokens=tokens)
    return comparison_document(rows)


def advice(launch_text: str = str(ROOT / "examples/sft.yaml")) -> dict[str, Any]:
    """What `advise` prints of a launch, which is a file or arguments."""
    request = Request(model="llama-3.1-8b", cluster="h100-sxm:16", seq_len=0, global_batch=0)
    launch, request = read_request([launch_text], request, cluster=load_cluster(request.cluster))
    return advice_document(launch, advise(launch, request))


def serving(request: ServingRequest = SERVED) -> dict[str, Any]:
    """What `serve-simulate` prints."""
    return serving_document(serve_simulate(request))


OTHER_KINDS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "strategies": lambda: comparison(tokens=1e9),
    "strategies without a price": lambda: comparison(
        clusters=("h800-sxm:8", "h800-sxm:16"), strategies=()
    ),
    "strategies that do not fit": lambda: comparison(
        replace(LARGE, runtime=""), clusters=(LARGE.cluster,), strategies=("tp4", "pp4")
    ),
    "clusters": lambda: comparison(
        clusters=("h100-sxm:8", f"a100-sxm-80gb:{many(1, 4)}+h100-sxm:{many(1, 4)}"), strategies=()
    ),
    "advice": advice,
    "advice on a launch that cannot run": lambda: advice(
        f"{LLAMA} {SPLIT} --micro-batch-size 3 --global-batch-size 64"
    ),
    "serving": serving,
    "serving of a stream": lambda: serving(replace(SERVED, concurrency=0, arrivals="poisson:20/s")),
    "serving of single tokens": lambda: serving(replace(SERVED, osl="1", slo="")),
    "serving that misses its targets": lambda: serving(replace(SERVED, slo="ttft=1ms")),
    "serving with separate prefill": lambda: serving(
        replace(SERVED, cluster="h100-sxm:4", deployment="prefill 2x(tp1) decode 1x(tp2)", slo="")
    ),
}
