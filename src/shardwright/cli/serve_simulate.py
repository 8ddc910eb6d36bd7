"""``shardwright serve-simulate``: what a deployment of a serving engine does under traffic."""

from __future__ import annotations

from typing import Annotated

from shardwright.api import serving
from shardwright.api.serving_execution import served_execution
from shardwright.cli import flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.files.text import to_text
from shardwright.report.serving.deployment_screen import (
    estimate_document,
    render_estimate,
    render_serving,
    serving_document,
)
from shardwright.report.serving.executed_deployment_screen import render_served, served_document
from shardwright.report.serving.serving_sources_screen import render_sources, sources_document
from shardwright.serving.serving_request import ServingRequest
from shardwright.units import format_seconds

Deployment = Annotated[
    str,
    typer.Option(
        "--deployment",
        help='Such as "tp8", "agg 4x(tp2 seqs256)" or "prefill 3x(tp4) decode 2x(dpa8 ep8 mtp1)".',
        show_default="one worker on all devices",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help=(
            "vllm, sglang or tensorrt-llm, with a version and options: 'vllm-0.12"
            " token_budget=16384'."
        ),
        show_default="the newest vLLM",
    ),
]
Isl = Annotated[
    str,
    typer.Option(
        "--isl",
        metavar="N",
        help="Tokens of a prompt: 1024, 8k, or a range such as 819-1024.",
        show_default=False,
    ),
]
Osl = Annotated[
    str,
    typer.Option("--osl", metavar="N", help="Tokens of an answer, likewise.", show_default=False),
]
Concurrency = Annotated[
    int,
    typer.Option(
        "--concurrency",
        metavar="N",
        min=0,
        help="Requests in flight (a closed loop).",
        show_default=False,
    ),
]
Arrivals = Annotated[
    str,
    typer.Option(
        "--arrivals",
        metavar="STREAM",
        help="A stream instead: poisson:12/s, or diurnal:12/s,0.5,24h.",
        show_default=False,
    ),
]
Trace = Annotated[
    str,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="A file of requests instead (docs/serving.md).",
        show_default=False,
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        "--requests",
        metavar="N",
        min=0,
        help="Requests in all.",
        show_default="10 for each in flight, or 1,000",
    ),
]
Formats = Annotated[
    str,
    typer.Option(
        "--precision",
        help=(
            "Number format of all matrix multiplications (fp8), or by class: 'attention=bf16"
            " experts=nvfp4 kv=fp8'."
        ),
        show_default="as the checkpoint stores the weights",
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        "--prefix",
        metavar="TOKENSxTEXTS",
        help="Prompts begin with one of so many shared texts: 2000x4.",
        show_default=False,
    ),
]
Slo = Annotated[
    str,
    typer.Option(
        "--slo", help="What is promised: ttft=500ms,tpot=30ms,share=0.99.", show_default=False
    ),
]
Acceptance = Annotated[
    str,
    typer.Option(
        "--acceptance",
        metavar="SHARE",
        help="Share of guesses (mtpN) that are right, those before them being so.",
        show_default=False,
    ),
]
Skew = Annotated[
    float,
    typer.Option(
        "--expert-skew",
        metavar="X",
        help="Tokens of the device with the busiest experts over the mean.",
    ),
]
Execute = Annotated[
    bool,
    typer.Option(
        "--execute",
        help=(
            "Also serve a small model on one worker, as the engine schedules, and compare its"
            " logits with the unsplit model's."
        ),
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, help="Of all that is drawn: lengths and arrivals."),
]


Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Say what the answer rests on: each fact of the engine with its link."
    ),
]


Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help=(
            "A closed form in the mean instead, in milliseconds: no percentiles, no queue is"
            " simulated."
        ),
    ),
]


def serve_simulate(
    model: flags.Model,
    cluster: flags.Cluster,
    *,
    deployment: Deployment = "",
    engine: Engine = "",
    isl: Isl = "",
    osl: Osl = "",
    concurrency: Concurrency = 0,
    arrivals: Arrivals = "",
    trace: Trace = "",
    requests: Requests = 0,
    precision: Formats = "",
    prefix: Prefix = "",
    slo: Slo = "",
    acceptance: Acceptance = "",
    expert_skew: Skew = 1.0,
    seed: Seed = 0,
    estimate: Estimate = False,
    execute: Execute = False,
    explain: Explain = False,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Predict time to first token, time per token, throughput and memory of serving MODEL on
    CLUSTER.
    """
    request = ServingRequest(
        model=model,
        cluster=cluster,
        deployment=screen.given(deployment),
        engine=engine,
        isl=isl,
        osl=osl,
        concurrency=concurrency,
        arrivals=arrivals,
        trace=trace,
        requests=requests,
        precision=precision,
        prefix=prefix,
        slo=slo,
        acceptance=acceptance,
        expert_skew=expert_skew,
        seed=seed,
    )
    if estimate:
        _show_estimate(request, as_json=as_json)
        return
    with screen.progress(quiet=quiet or as_json, doing=screen.SIMULATING) as report:
        answer = serving.serve_simulate(request)
        proof = served_execution(request, progress=report) if execute else None
    if as_json:
        more = ({"sources": sources_document(answer)} if explain else {}) | (
            {"execution": served_document(proof)} if proof else {}
        )
        screen.write(to_text(serving_document(answer) | more))
    elif quiet:
        seen = answer.metrics
        screen.write(
            f"{seen.tokens_per_second:.4g} tokens/s, TTFT {format_seconds(seen.ttft.mean)}, TPOT"
            f" {format_seconds(seen.tpot.mean)}\n"
        )
    else:
        screen.show(render_serving(answer))
        if explain:
            screen.show(render_sources(answer))
        if proof:
            screen.show(render_served(proof))


def _show_estimate(request: ServingRequest, *, as_json: bool) -> None:
    found = serving.serve_estimate(request)
    if as_json:
        screen.write(to_text(estimate_document(found)))
    else:
        screen.show(render_estimate(found))


main = verb(serve_simulate, name="serve-simulate")
