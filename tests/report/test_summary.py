"""What a screen begins with and ``print`` shows: what was asked, how the cluster was understood,
time, memory, what is assumed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.request_to_problem import problem_of
from shardwright.cli.terminal.output_and_progress import plain
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.report.screens.plan_screen import render_answer, render_simulation
from shardwright.search.answer_summary_text import prediction_lines
from shardwright.search.joint.joint_plan_and_step_costs import ChunkChoice, JointPlan
from shardwright.search.joint.joint_plan_to_general_plan import joint_plan_text
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import strategy_text
from shardwright.simulator.cluster_texts_and_sources import cluster_sources
from shardwright.simulator.predict_plan import predict
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cli.answers import ANSWER, simulated
from tests.cli.screens import general

ENDLESS = 1000


def test_print_is_the_head_of_the_screen() -> None:
    lines = str(ANSWER).splitlines()
    assert lines[0] == "llama-2-7b on h100-sxm:64: 256 sequences of 4,096 tokens a step, bf16"
    assert lines[-1] == "Optimal: no other strategy of the space is faster."
    assert plain(render_answer(ANSWER), width=ENDLESS).startswith("\n".join(lines[:-1]) + "\n")
    assert plain(render_simulation(simulated()), width=ENDLESS).startswith(f"{simulated()}\n")
    assert "Not proven optimal: no strategy of the space takes less than 1.5 s." in str(
        replace(ANSWER, certificate=replace(ANSWER.certificate, optimal=False, lower_bound_s=1.5))
    )


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("h100-sxm:8", "1 node of 8 h100-sxm (scale-up domain of 8), 8 NICs of 400 Gb/s (assumed)"),
        ("h100-sxm:1048576", "; a single non-blocking switch for all 1,048,576 devices (assumed)"),
        ("gb200-nvl72:144", "36 nodes of 4 gb200-nvl72 (scale-up domain of 72), 4 NICs of"),
        ("dgx-superpod-h100:512", "; leaf of 256 devices (rail-optimised), spine over all devices"),
        (
            "meta-24k-roce",
            "pod of 3,072 devices, aggregation over all devices (oversubscribed 7:1)",
        ),
        (
            "h100-sxm:8+a100-sxm-80gb:8",
            (
                "1 node of 8 h100-sxm (scale-up domain of 8), 8 NICs of 400 Gb/s + 1 node of 8"
                " a100-sxm-80gb"
            ),
        ),
    ],
)
def test_the_cluster_is_said_as_it_was_understood(cluster: str, words: str) -> None:
    prediction = replace(ANSWER.prediction, sources=cluster_sources(parse_cluster(cluster)))
    said = dict(prediction_lines(prediction))
    assert words in said["Cluster"]
    assert ("switches" in said["Assumed"]) == ("a single non-blocking switch" in said["Cluster"])


def test_a_file_says_where_its_switches_come_from() -> None:
    text = (
        "nodes: [{accelerator: h100-sxm, count: 16}]\nfabric: [{name: leaf, devices: 64}, {name:"
        " spine, oversubscription: 2}]\n"
    )
    _, switches = cluster_sources(
        load_cluster(text + "fabric_origin: {evidence: published, reference: the rack's papers}\n")
    )
    assert (switches.value, switches.origin.reference) == (
        "leaf of 64 devices, spine over all devices (oversubscribed 2:1)",
        "the rack's papers",
    )
    assert cluster_sources(load_cluster(text))[1].origin.reference == "given in the cluster file"


def test_every_prediction_has_its_cluster() -> None:
    problem = problem_of(
        Request(model="llama-3.2-1b", cluster="h100-sxm:16", seq_len=2048, global_batch=16)
    )
    found = predict(problem, Grid(dp=16))
    assert [source.quantity for source in found.sources][:2] == ["nodes", "switches"]
    assert "16 devices" in dict(prediction_lines(found))["Cluster"]


def test_names_of_joint_plans_are_whole_and_one_stage_has_no_schedule() -> None:
    name = "pp2 vpp2 zero0 tp2 dp1 mbs2; 4 microbatches, interleaved-1f1b, layers 5 5 6 0"
    assert strategy_text(general(name)) == f"{name}: 4 devices, 1 lane, 2 stages, order 1f1b"
    plan = general("").plan
    assert plan is not None
    lane = replace(plan.lanes[0], stages=plan.lanes[0].stages[:1])
    assert (
        strategy_text(replace(general(""), plan=replace(plan, lanes=(lane,))))
        == "a plan: 4 devices, 1 lane, 1 stage"
    )
    alone = JointPlan(
        grids=(Grid(dp=4),),
        outers=(0,),
        chunks=(ChunkChoice(layers=16),),
        microbatches=4,
        schedule="1f1b",
    )
    assert joint_plan_text(alone) == "pp1 vpp1 zero0 tp1 dp4 mbs1; 4 microbatches, layers 16"
