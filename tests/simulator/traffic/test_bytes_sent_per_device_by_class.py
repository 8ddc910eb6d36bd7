"""What devices send in a step: closed forms of whole strategies, and sums that any plan keeps."""

from dataclasses import replace

import pytest

from shardwright.api.request_to_problem import problem_of
from shardwright.program.training_problem import Problem
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import plan_of_grid, simulate_grid, simulate_plan
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.simulator.traffic.device_traffic_by_group_and_tier import Traffic
from shardwright.strategy.text.grid_notation import parse_grid

TOKENS, HIDDEN, LAYERS, BATCH = 4096, 4096, 32, 32
"""Of Llama 2 7B and the job."""


def problem(cluster: str) -> Problem:
    return problem_of(
        Request(model="llama-2-7b", cluster=cluster, seq_len=TOKENS, global_batch=BATCH)
    )


def sent(cluster: str, text: str) -> tuple[tuple[Traffic, ...], ...]:
    asked = problem(cluster)
    return plan_traffic(
        asked, simulate_grid(asked, parse_grid(text, devices=asked.cluster.num_devices))
    )


def of(traffic: tuple[Traffic, ...], part: str) -> dict[tuple[int, ...], tuple[float, ...]]:
    return {tuple(one.group): one.sent for one in traffic if one.part == part}


def test_one_device_sends_nothing() -> None:
    assert sent("h100-sxm:1", "zero0 recompute=full") == ((),)


def test_sharded_optimizers_scatter_gradients_and_gather_parameters() -> None:
    """Rings of eight in an island: 7/8 of fp32 gradients and of bf16 parameters."""
    (traffic,) = sent("h100-sxm:8", "zero1 recompute=full")
    parameters = problem("h100-sxm:8").model.num_parameters
    assert of(traffic, "sharding") == {
        tuple(range(8)): (pytest.approx(7 / 8 * parameters * (4 + 2), rel=1e-6),)
    }
    assert {one.part for one in traffic} == {"sharding"}


def test_zero_3_gathers_for_every_pass() -> None:
    asked = problem("h100-sxm:8")
    (traffic,) = sent("h100-sxm:8", "zero3 mbs2 recompute=full")
    runs = BATCH // (8 * 2)
    reduces = runs if asked.runtime.reduce_every_microbatch else 1
    expected = 7 / 8 * asked.model.num_parameters * (4 * reduces + 2 * 2 * runs)
    assert of(traffic, "sharding") == {tuple(range(8)): (pytest.approx(expected, rel=1e-6),)}


def test_parameters_out_of_reach_of_their_reuse_are_gathered_again_for_the_recomputed_layers() -> (
    None
):
    asked = problem("h100-sxm:8")

    def gathered(reuse: int, recompute: str) -> float:
        runtime = replace(asked.runtime, name=f"reuse-{reuse}", reuse_elements=reuse)
        made = replace(asked, runtime=runtime)
        (traffic,) = plan_traffic(
            made, simulate_grid(made, parse_grid(f"zero3 mbs4 recompute={recompute}", devices=8))
        )
        return of(traffic, "sharding")[tuple(range(8))][0]

    layer = asked.model.blocks[1].num_parameters
    more = gathered(layer, "full") - gathered(0, "full")
    # One microbatch; half of each layer lies further apart than a layer's elements; 2 bytes, of
    # which a ring of 8 sends 7/8.
    assert more == pytest.approx(7 / 8 * 2 * 0.5 * LAYERS * layer, rel=1e-6)
    assert gathered(layer, "none") == gathered(0, "none")


def test_pipelines_send_a_microbatch_each_way() -> None:
    """bf16 activations cross the network, the gradients come back; neighbours in one island stay in
    it."""
    message = TOKENS * HIDDEN * 2
    first, *middle, last = sent("h100-sxm:32", "pp4 dp8 zero1 recompute=full")
    runs = BATCH // 8
    assert of(first, "pp") == {(0, 8): (0.0, runs * message)}
    assert of(last, "pp") == {(16, 24): (0.0, runs * message)}
    for number, one in enumerate(middle, start=1):
        here = 8 * number
        assert of(one, "pp") == {
            (here - 8, here): (0.0, runs * message),
            (here, here + 8): (0.0, runs * message),
        }
    inside = sent("h100-sxm:8", "pp2 dp4 zero1 recompute=full order=pp-dp")
    assert of(inside[0], "pp") == {(0, 1): (runs * 2 * message,)}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_sequence_parallelism_gathers_and_scatters(recompute: str) -> None:
    """A layer gathers its input and scatters its output twice each way, and once more for weight
    gradients of both; a full recompute repeats the forward. A ring of 8 sends 7/8 of the whole, in
    the island. Embedding and head add less than a layer.
    """
    asked = problem("h100-sxm:8")
    (traffic,) = sent("h100-sxm:8", f"tp8 sp dp1 mbs1 zero0 recompute={recompute}")
    layer = 7 / 8 * TOKENS * HIDDEN * 2
    moves = 8 + 2 * asked.runtime.tp_input_regather + (4 if recompute == "full" else 0)
    found = of(traffic, "tp")[tuple(range(8))][0] / (BATCH * layer)
    assert moves * LAYERS < found < moves * (LAYERS + 1)


def test_what_leaves_a_node_is_counted_on_every_tier_it_crosses() -> None:
    """Groups of eight devices on eight nodes send all they send over the network, and those in one
    node nothing."""
    (traffic,) = sent("h100-sxm:64", "tp8 sp dp8 mbs1 zero1 recompute=full")
    for one in traffic:
        inside = one.group[-1] < 8
        assert (one.sent[1] == 0.0) is inside
        assert (one.sent[0] == 0.0) is not inside


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("llama-2-7b", "tp2 sp pp4 dp2 mbs1 zero1"),
        ("llama-2-7b", "tp2 sp cp2 dp4 mbs1 zero3"),
        ("llama-2-7b", "dp16 mbs1 zero3 shard8 recompute=full"),
        ("llama-3.2-1b", "pp2 dp8 mbs1 zero1 shard4"),
        ("mixtral-8x7b", "tp2 sp pp2 ep4 dp4 mbs1 zero1"),
    ],
)
def test_a_group_of_a_device_is_a_group_of_each_of_its_members(model: str, text: str) -> None:
    """Unfolded, each device is a class of its own: its groups are not those of the first replica.

    Llama 3.2 1B ties its embedding to its head, so that groups reach over two stages.
    """
    asked = problem_of(
        Request(model=model, cluster="h100-sxm:16", seq_len=TOKENS, global_batch=BATCH)
    )
    plan = plan_of_grid(asked, parse_grid(text, devices=16))
    simulated = simulate_plan(asked, plan, unfolded=True)
    groups_of = {
        device_class.devices.first: {(one.part, tuple(sorted(one.group))) for one in traffic}
        for device_class, traffic in zip(
            simulated.program.classes, plan_traffic(asked, simulated), strict=True
        )
    }
    assert set(groups_of) == set(range(16))
    for device, groups in groups_of.items():
        for part, group in groups:
            assert device in group
            assert all((part, group) in groups_of[member] for member in group)


def test_experts_send_a_copy_for_each_device() -> None:
    asked = problem_of(
        Request(model="mixtral-8x7b", cluster="h100-sxm:8", seq_len=TOKENS, global_batch=BATCH)
    )
    grid = parse_grid("ep8 dp8 mbs1 zero1 recompute=full", devices=8)
    (traffic,) = plan_traffic(asked, simulate_grid(asked, grid))
    (everyone,) = of(traffic, "ep").values()
    slower = replace(asked, job=replace(asked.job, global_batch=2 * BATCH))
    (doubled,) = plan_traffic(slower, simulate_grid(slower, grid))
    assert of(doubled, "ep")[tuple(range(8))][0] == pytest.approx(2 * everyone[0])
    assert of(doubled, "sharding") == of(traffic, "sharding"), (
        "gradients do not grow with the batch"
    )
