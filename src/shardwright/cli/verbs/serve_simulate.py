"""``shardwright serve-simulate``: predict a serving deployment's latencies under traffic."""

from __future__ import annotations

from typing import Annotated

from rich.console import Group

from shardwright.api import simulate_deployment
from shardwright.api.prove_deployment_by_execution import prove_deployment
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option, group
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.files.canonical_json import to_text
from shardwright.report.serving.deployment_screen import (
    estimate_document,
    render_estimate,
    render_serving,
    serving_document,
)
from shardwright.report.serving.executed_deployment_proof_screen import (
    render_served,
    served_document,
)
from shardwright.report.serving.serving_sources_screen import render_sources, sources_document
from shardwright.serving.simulation.serving_answer import ServingAnswer
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from shardwright.units import format_seconds


@group("Deployment")
class DeploymentFlags:
    """Options for workers, engine and number formats."""

    deployment: Annotated[
        str,
        Option(
            "--deployment",
            help=(
                'Workers, such as "tp8", "agg 4x(tp2 seqs256)" or'
                ' "prefill 3x(tp4) decode 2x(dpa8 ep8 mtp1)"; - reads standard input.'
            ),
            show_default="one worker on all devices",
        ),
    ] = ""
    engine: Annotated[
        str,
        Option(
            "--engine",
            help=(
                "Serving engine: vllm, sglang or tensorrt-llm, with a version and options:"
                " 'vllm-0.12 token_budget=16384'."
            ),
            show_default="the newest vLLM",
        ),
    ] = ""
    precision: Annotated[
        str,
        Option(
            "--precision",
            help=(
                "Number format of all matrix multiplications (fp8), or by class: 'attention=bf16"
                " experts=nvfp4 kv=fp8'."
            ),
            show_default="as the checkpoint stores the weights",
        ),
    ] = ""
    acceptance: Annotated[
        str,
        Option(
            "--acceptance",
            metavar="SHARE",
            help=(
                "Probability that a draft token (mtpN) is accepted, given that the draft tokens"
                " before it were: 0.8."
            ),
            show_default=False,
        ),
    ] = ""
    expert_skew: Annotated[
        float,
        Option(
            "--expert-skew",
            metavar="X",
            help="Tokens of the device with the busiest experts, divided by the mean: 1.2.",
        ),
    ] = 1.0


@group("Traffic")
class TrafficFlags:
    """Options for requests and their latency objectives."""

    isl: Annotated[
        str,
        Option(
            "--isl",
            metavar="N",
            help="Input sequence length: tokens of a prompt, 1024, 8k or a range such as 819-1024.",
            show_default=False,
        ),
    ] = ""
    osl: Annotated[
        str,
        Option(
            "--osl",
            metavar="N",
            help="Output sequence length: tokens of an answer, 256 or a range such as 200-300.",
            show_default=False,
        ),
    ] = ""
    concurrency: Annotated[
        int,
        Option(
            "--concurrency",
            metavar="N",
            min=0,
            help="Requests in flight at any time (a closed loop): 64.",
            show_default=False,
        ),
    ] = 0
    arrivals: Annotated[
        str,
        Option(
            "--arrivals",
            metavar="STREAM",
            help=(
                "Arrivals of requests (an open loop) instead of --concurrency: poisson:12/s, or"
                " diurnal:12/s,0.5,24h."
            ),
            show_default=False,
        ),
    ] = ""
    trace: Annotated[
        str,
        Option(
            "--trace",
            metavar="FILE",
            help="File of requests instead of lengths and arrivals (docs/serving.md).",
            show_default=False,
        ),
    ] = ""
    requests: Annotated[
        int,
        Option(
            "--requests",
            metavar="N",
            min=0,
            help="Number of requests to simulate.",
            show_default="10 for each in flight, or 1,000",
        ),
    ] = 0
    prefix: Annotated[
        str,
        Option(
            "--prefix",
            metavar="TOKENSxTEXTS",
            help="Length in tokens and number of the texts that prompts begin with: 2000x4.",
            show_default=False,
        ),
    ] = ""
    slo: Annotated[
        str,
        Option(
            "--slo",
            help="Latency objectives and the share of requests: ttft=500ms,tpot=30ms,share=0.99.",
            show_default=False,
        ),
    ] = ""
    seed: Annotated[
        int,
        Option(
            "--seed", metavar="N", min=0, help="Random seed for request lengths and arrival times."
        ),
    ] = 0


@group("Method")
class MethodFlags:
    """Options for the kind of prediction and additional output."""

    estimate: Annotated[
        bool,
        Option(
            "--estimate",
            help=(
                "Compute mean latencies by a closed form, in milliseconds, instead of simulating:"
                " no percentiles and no queue."
            ),
        ),
    ] = False
    execute: Annotated[
        bool,
        Option(
            "--execute",
            help=(
                "Also serve a small model on one worker, as the engine schedules, and compare its"
                " logits with the unsplit model's."
            ),
        ),
    ] = False
    explain: Annotated[
        bool,
        Option(
            "--explain",
            help="Also list each fact of the engine that the answer rests on, with its link.",
        ),
    ] = False


def serve_simulate(
    model: shared_options.Model,
    cluster: shared_options.Cluster,
    *,
    workers: DeploymentFlags,
    traffic: TrafficFlags,
    method: MethodFlags,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> None:
    """Predict latencies, throughput and memory of serving MODEL on CLUSTER.

    Latencies are the time to first token and the time per token.
    """
    screen.check_writable(output)
    request = ServingRequest(
        model=model,
        cluster=cluster,
        deployment=screen.text_or_stdin(workers.deployment),
        engine=workers.engine,
        isl=traffic.isl,
        osl=traffic.osl,
        concurrency=traffic.concurrency,
        arrivals=traffic.arrivals,
        trace=traffic.trace,
        requests=traffic.requests,
        precision=workers.precision,
        prefix=traffic.prefix,
        slo=traffic.slo,
        acceptance=workers.acceptance,
        expert_skew=workers.expert_skew,
        seed=traffic.seed,
    )
    if method.estimate:
        mean_estimate = simulate_deployment.serve_estimate(request)
        text = to_text(estimate_document(mean_estimate))
        if output is not None:
            screen.save(output, text)
        if form.as_json:
            screen.write(text)
        else:
            screen.show(render_estimate(mean_estimate))
        return
    with screen.progress(form, doing=screen.SIMULATING) as report:
        answer = simulate_deployment.serve_simulate(request)
        proof = prove_deployment(request, progress=report) if method.execute else None
    screen.print_answer(
        form,
        document=lambda: {
            **serving_document(answer),
            **({"sources": sources_document(answer)} if method.explain else {}),
            **({"execution": served_document(proof)} if proof else {}),
        },
        line=lambda: _quiet_line(answer),
        picture=lambda: Group(
            render_serving(answer),
            *([render_sources(answer)] if method.explain else []),
            *([render_served(proof)] if proof else []),
        ),
        output=output,
    )


def _quiet_line(answer: ServingAnswer) -> str:
    """Line of ``--quiet``: tokens a second and mean latencies."""
    metrics = answer.metrics
    return (
        f"{metrics.tokens_per_second:.4g} tokens/s, TTFT {format_seconds(metrics.ttft.mean)}, TPOT"
        f" {format_seconds(metrics.tpot.mean)}\n"
    )


main = verb(serve_simulate, name="serve-simulate")
