"""Each tier is a lower bound of the next: B0 <= B1 <= S; and B1 is the longest path of the
Program."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardwright.api.request_to_problem import facts_of
from shardwright.cost.bounds.longest_path import microbatches_of, order_table, path_seconds
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.network.stage_transfers import crossing_seconds
from shardwright.cost.part_phase_recompute_keys import PARTS
from shardwright.cost.step.strategy_task_seconds import PART_NAMES, step_costs
from shardwright.dtype import Dtype
from shardwright.hardware.cluster import FabricTier
from shardwright.job.training_job import SequenceLength
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.program.stages.blocks_of_pipeline_chunks import chunk_contents
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    Capture,
    ExpertDispatch,
    KeptOutput,
    ScaleGroup,
    Scaling,
    SelectiveRecompute,
    TpOverlap,
)
from shardwright.search.grid.bounds.members_with_time_and_memory import Bounded, bound_space
from shardwright.search.grid.bounds.unequal_group_placement_bounds import member_path
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.grid.members.grid_search_space import AXES, Space
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid
from tests.cost.prices import price_grid
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.search.problems import llama_405b
from tests.simulator.paths import path_seconds_of
from tests.simulator.towers import CONFIGS as TOWERS
from tests.simulator.towers import drawn_tower, tower_model
from tests.strategies import dense_model, expert_model
from tests.tiers import chosen, in_both, in_proof, many, seeds

EACH = many(3, 60)
T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 1024,
    "num_heads": 16,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": 7,
    "vocab_size": 32128,
}
NARROW, WIDE = (
    dense_model(layers=12),
    dense_model(layers=12, heads=64, ffn=16384, vocab=50000, tied=True),
)
SPARSE = expert_model(dense=1, sparse=11, experts=8)
UNEVEN = expert_model(dense=1, sparse=11, experts=12, ffn=16384)
"""Of a sample's tokens its experts have no whole number each, and of those the members of a context
group none."""
ANY = replace(
    RUNTIME,
    name="any",
    schedules=("gpipe", "1f1b", "interleaved-1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    hybrid_sharding=True,
    optimizer_offload=True,
)
RUNTIMES: tuple[Runtime, ...] = (
    ANY,
    replace(ANY, name="blocking-sends", overlap_p2p=False),
    replace(ANY, name="sends-beside", plain_p2p_blocks=False),
    replace(ANY, name="copies", gather_copy_bytes=40, reduce_copy_bytes=60),
    replace(
        ANY, name="pieces", bucket_bytes=0, gather_bucket_bytes=1 << 20, reuse_elements=1 << 24
    ),
    replace(
        ANY,
        name="lists",
        bucket_bytes=0,
        listed_collectives=True,
        reuse_elements=1 << 24,
        reduce_every_microbatch=True,
    ),
    replace(ANY, name="replicas-apart", bucket_bytes=0, sums_replicas_apart=True),
    replace(
        ANY,
        name="gradients-on-host",
        gradients_on_host=True,
        reduce_every_microbatch=True,
        host_gradient_bytes=4,
    ),
    replace(
        ANY,
        name="gradients-on-host-at-the-end",
        gradients_on_host=True,
        reduce_every_microbatch=False,
        host_gradient_bytes=4,
    ),
    replace(
        ANY,
        name="parts-on-host",
        gradients_on_host=True,
        reduce_every_microbatch=True,
        sums_replicas_apart=True,
        bucket_bytes=0,
    ),
    replace(ANY, name="reduces-at-the-end", reduce_every_microbatch=False, main_grad_copy=True),
    replace(ANY, name="blocking-reductions", overlap_grad_reduce=False),
    replace(ANY, name="schedules", overlap_grad_reduce=False, collective_library="synthesised"),
    replace(ANY, name="blocking-gathers", overlap_param_gather=False),
    replace(
        ANY,
        name="eight-bits-delayed",
        scaling=Scaling.DELAYED,
        scales_reduced=ScaleGroup.STAGE,
        saves_quantized=True,
    ),
    replace(
        ANY,
        name="eight-bits-gathered",
        saves_quantized=True,
        gathers_narrow=True,
        gathers_quantized=True,
    ),
    replace(
        ANY,
        name="eight-bits-mx",
        scaling=Scaling.MX,
        saves_quantized=True,
        gathers_narrow=True,
        gathers_quantized=True,
    ),
    replace(ANY, name="eight-bits-rowwise", scaling=Scaling.ROWWISE, tp_overlap=TpOverlap.ASYNC),
    replace(ANY, name="captured", capture=Capture.ITERATION),
    replace(
        ANY,
        name="hidden-experts",
        expert_overlap=True,
        routing_on_host=True,
        expert_dispatch=ExpertDispatch.DEDUPLICATED,
    ),
    replace(
        ANY,
        name="hybrid-experts",
        hybrid_dispatch=True,
        routing_on_host=True,
        expert_dispatch=ExpertDispatch.DEDUPLICATED,
    ),
    replace(ANY, name="gathered-experts", expert_dispatch=ExpertDispatch.GATHERED),
    replace(
        ANY,
        name="eight-bits",
        expert_dispatch=ExpertDispatch.DEDUPLICATED,
        dispatches_eight_bit=True,
        saves_quantized=True,
        saves_gates_eight_bit=True,
        moments=Dtype.BF16,
    ),
    replace(
        ANY,
        name="more-memory",
        tp_overlap=TpOverlap.FUSED,
        logits_blocks_bytes=ANY.logits_bytes + 2,
        split_logits_bytes=4,
    ),
    replace(
        ANY,
        name="by-name",
        selective_recompute=SelectiveRecompute.NAMED,
        kept_outputs=(KeptOutput.QKV, KeptOutput.UP),
        host_outputs=(KeptOutput.INPUT, KeptOutput.UP),
        logits_parts=4,
    ),
    replace(
        ANY,
        name="nothing-overlaps",
        overlap_p2p=False,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        tp_synchronises=True,
    ),
)


def drawn(draw: random.Random, *, share: float = 0.4) -> tuple[Problem, Grid]:
    """A problem and a grid for it. share: of those whose model has experts."""
    while True:
        experts = draw.random() < share
        grid = random_grid(draw, experts=experts, schedules=("1f1b", "gpipe"))
        node = draw.choice((2, 4, 8, 12))
        if grid.devices % node:
            continue
        spine = FabricTier(name="spine", num_devices=0, oversubscription=4.0)
        fabric = draw.choice(((), (FabricTier(name="leaf", num_devices=2 * node), spine)))
        problem = problem_of(
            draw.choice((SPARSE, UNEVEN) if experts else (NARROW, WIDE)),
            cluster_of(
                grid.devices,
                node=node,
                fabric=fabric,
                accelerator=draw.choice(("h100-sxm", "l40s", "b200-sxm")),
            ),
            runtime=draw.choice(RUNTIMES),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 2, 6, 12)),
            seq_len=draw.choice((256, 4096)),
        )
        if experts:
            problem = replace(
                problem,
                job=replace(problem.job, expert_imbalance=1.37 if grid.microbatch == 2 else 1.0),
            )
        if problem.runtime.name.startswith("eight-bits"):
            problem = replace(problem, job=replace(problem.job, compute=Dtype.FP8))
        if is_legal(problem, grid):
            return problem, grid


def around(grid: Grid, *, alike: bool) -> Space:
    """All memory choices of one mesh and schedule."""
    switches = {
        "sp": int(grid.sp),
        "gather": int(grid.gather),
        "mbs": grid.microbatch,
        "order": "-".join(grid.order),
    }
    values: dict[str, tuple[int | str, ...]] = {
        axis: (switches[axis] if axis in switches else getattr(grid, axis),)
        for axis in (
            "tp",
            "cp",
            "pp",
            "order",
            "ep",
            "etp",
            "sp",
            "ulysses",
            "gather",
            "mbs",
            "vpp",
            "schedule",
        )
    }
    values |= {
        "zero": (0, 1, 2, 3),
        "shard": (0, 2),
        "recompute": ("none", "selective", "full"),
        "offload": (0, 50, 100),
    }
    # A number of recomputed layers is searched only where layers are alike.
    values["recompute_layers"] = (0, 1) if alike else (0,)
    return Space(
        name="around", devices=grid.devices, values=tuple((axis, values[axis]) for axis in AXES)
    )


def assert_in_order(problem: Problem, bounded: Bounded, place: int) -> tuple[float, float, float]:
    """B0 <= B1 <= S of a member, and the same of its memory; these three, in seconds."""
    member = member_grid(bounded.members, place)
    costs = step_costs(problem, member, bounded.prepared.priced(place))
    bound, path = (
        float(bounded.seconds[place]),
        member_path(problem, bounded.prepared, place, member, costs),
    )
    simulated = simulate_grid(problem, member)
    where = f"{problem.model.name} {problem.runtime.name} {problem.job.sequences} {member}"
    assert 0.0 < bound <= path, where
    assert path <= simulated.step_time_s, where
    need = reserved_bytes(
        problem, order_table(member, microbatches=microbatches_of(problem, member)), costs
    )
    assert np.floor(bounded.memory[place]) <= need.max() <= simulated.need, where
    return bound, path, simulated.step_time_s


@pytest.mark.parametrize("block", seeds(2, 20))
def test_each_tier_bounds_the_next(block: int) -> None:
    draw = random.Random(100 + block)
    members = tight = strict = 0
    for _ in range(EACH):
        problem, grid = drawn(draw)
        facts = grid_facts(
            problem.model,
            devices=grid.devices,
            global_batch=problem.job.global_batch,
            seq_len=problem.job.sequence_length,
        )
        bounded = bound_space(
            problem, around(grid, alike=problem.model in (NARROW, WIDE)), facts, capacity=10**15
        )
        places = draw.sample(
            range(bounded.members.num_members), min(4, bounded.members.num_members)
        )
        assert places, grid
        for place in places:
            bound, path, seconds = assert_in_order(problem, bounded, place)
            members += 1
            tight += bound > 0.8 * path
            strict += path < seconds
    assert members >= 3 * EACH
    assert tight > members // 2
    assert strict > members // 10


@pytest.mark.parametrize("block", seeds(1, 20))
def test_bounds_of_experts_over_context_groups_are_in_order(block: int) -> None:
    """Half of them in pipelines of several chunks, and many with states on the host."""
    draw, away, chunks = random.Random(300 + block), 0, 0
    for number in range(many(6, 60)):
        problem, grid = drawn(draw, share=1.0)
        while (grid.cp == 1 and not grid.sp) or (grid.vpp == 1 and number % 2):
            problem, grid = drawn(draw, share=1.0)
        bounded = bound_space(
            problem, around(grid, alike=False), facts_of(problem), capacity=10**15
        )
        for place in draw.sample(
            range(bounded.members.num_members), min(4, bounded.members.num_members)
        ):
            assert_in_order(problem, bounded, place)
            member = member_grid(bounded.members, place)
            away, chunks = away + (member.offload > 0), chunks + (member.vpp > 1)
    assert away
    assert chunks


PLAIN = tuple(one for one in RUNTIMES if not one.name.startswith("eight-bits"))


@pytest.mark.parametrize("block", seeds(1, 20))
def test_bounds_of_models_with_several_streams_are_in_order(block: int) -> None:
    """A tower's stream is narrower or wider than the text's, some of it frozen; its positions are a
    table, and words stand in between."""
    draw = random.Random(700 + block)
    for _ in range(many(4, 30)):
        problem, grid = drawn_tower(draw, PLAIN, schedules=("1f1b", "gpipe"))
        bounded = bound_space(
            problem, around(grid, alike=False), facts_of(problem), capacity=10**15
        )
        for place in draw.sample(
            range(bounded.members.num_members), min(3, bounded.members.num_members)
        ):
            assert_in_order(problem, bounded, place)


@pytest.mark.parametrize("name", [name for name in TOWERS if name != "t5"])
@pytest.mark.parametrize(
    "text",
    [
        "tp4 sp pp3 dp2 mbs2 zero1 recompute=full",
        "tp2 pp2 vpp2 dp3 mbs1 zero0 schedule=interleaved-1f1b",
        "cp2 pp4 dp2 mbs1 zero2",
    ],
)
def test_stages_of_a_tower_cost_the_same_in_columns_as_in_the_plan(name: str, text: str) -> None:
    """Patches are embedded on all members and sliced, each with its gradient gathered. What goes
    round the chain (`model.blocks.deepstack`) is sent beside the stream.
    """
    grid = parse_grid(text)
    problem = problem_of(
        tower_model(name),
        cluster_of(grid.devices, node=grid.devices),
        runtime=ANY,
        global_batch=24,
        seq_len=256,
    )
    image = SequenceLength(name="image", tokens=1024)
    problem = replace(problem, job=replace(problem.job, sequences=(*problem.job.sequences, image)))
    costs, done = step_costs(problem, grid, price_grid(problem, grid)), simulate_grid(problem, grid)
    for (_, chunk, _), family in done.costs.families.items():
        (one,) = family.slices
        assert costs.forward_s[chunk] == pytest.approx(float(one.forward_s[0]), rel=1e-12)
        assert costs.backward_s[chunk] == pytest.approx(float(one.backward_s[0]), rel=1e-12)
        assert costs.saved_bytes[chunk] == int(one.saved_bytes[0])
    model = problem.model
    contents = chunk_contents(model, pp=grid.pp, vpp=grid.vpp)
    last = [
        [block for block, _ in content if not model.blocks[block].beside][-1]
        for content in contents
    ]
    stream = [
        one for one in done.program.edges if model.runs[one.edge.run].block == last[one.edge.source]
    ]
    stream = [one for one in stream if one.edge.target == one.edge.source + 1]
    assert {one.edge.source for one in stream} == set(range(len(contents) - 1))
    assert (len(done.program.edges) > len(stream)) is any(block.beside for block in model.blocks)
    for one in stream:
        for messages in (one.forward, one.backward):
            assert costs.border_s[one.edge.source, 0] == pytest.approx(
                crossing_seconds(problem, messages, scale=2.0), rel=1e-12
            )


def test_sends_of_a_tower_are_its_own() -> None:
    """Seven chunks of 24 layers of 1024 and 28 of 2048: B1 sent the text's 16 MiB between the
    tower's, and was 0.13 % above S."""
    problem = problem_of(
        load_model("qwen3-vl-2b"), cluster_of(8, node=8), global_batch=64, seq_len=4096
    )
    problem = replace(
        problem,
        job=replace(
            problem.job,
            sequences=(*problem.job.sequences, SequenceLength(name="image", tokens=256)),
        ),
    )
    grid = parse_grid("pp2 vpp7 dp4 mbs8 zero1 schedule=interleaved-1f1b tp_overlap=userbuffers")
    costs, done = step_costs(problem, grid, price_grid(problem, grid)), simulate_grid(problem, grid)
    path = path_seconds(problem, grid, costs)
    assert 0.99 * done.step_time_s < path <= done.step_time_s


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "tp2 sp pp4 dp2 mbs1 zero0 order=tp-cp-ep-pp-dp",
        "tp4 pp2 dp2 mbs1 zero0 offload=100",
        "tp2 sp pp2 vpp7 dp4 mbs1 zero1 schedule=interleaved-1f1b",
        "tp2 sp pp3 dp4 mbs1 zero2 layers=7,2,5",
    ],
)
def test_bounds_of_an_encoder_and_a_decoder_are_in_order(tied: bool, text: str) -> None:
    """Words that stand between the two, and are the encoder's and the head's too; tables of biases
    that layers share."""
    grid, config = parse_grid(text), {**T5, "tie_word_embeddings": tied}
    model = model_from_config(config, name="t5")
    sequences = (
        SequenceLength(name="text", tokens=256),
        SequenceLength(name="encoder", tokens=256),
    )
    problem = problem_of(
        model, cluster_of(grid.devices, node=8), runtime=ANY, global_batch=64, seq_len=256
    )
    problem = replace(problem, job=replace(problem.job, sequences=sequences))
    costs, done = step_costs(problem, grid, price_grid(problem, grid)), simulate_grid(problem, grid)
    assert path_seconds(problem, grid, costs) <= done.step_time_s
    need = reserved_bytes(
        problem, order_table(grid, microbatches=microbatches_of(problem, grid)), costs
    )
    assert need.max() <= done.need
    for chunk in range(grid.pp * grid.vpp):
        (one,) = done.costs.families[0, chunk, 0].slices
        assert costs.forward_s[chunk] == pytest.approx(float(one.forward_s[0]), rel=1e-12)


def test_reductions_that_wait_for_other_chunks_slow_no_sends() -> None:
    """All layers of an encoder share a table of biases: B1 slowed sends by reductions that begin
    later, and was 0.3 % above S."""
    grid = parse_grid("pp6 dp4 mbs1 zero1 offload=50 schedule=gpipe order=tp-cp-ep-pp-dp")
    model = tower_model("t5", training="frozen:embed")
    problem = problem_of(
        model, cluster_of(24, node=2, accelerator="l40s"), runtime=ANY, global_batch=4, seq_len=256
    )
    problem = replace(
        problem,
        job=replace(
            problem.job,
            sequences=(*problem.job.sequences, SequenceLength(name="encoder", tokens=64)),
        ),
    )
    costs = step_costs(problem, grid, price_grid(problem, grid))
    assert costs.shares.max() > 0.0
    assert path_seconds(problem, grid, costs) <= simulate_grid(problem, grid).step_time_s


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5", "qwen3-next-80b-a3b", "gemma-2-2b"])
def test_a_layer_hands_on_its_last_hidden_state(name: str) -> None:
    """DeepSeek-V3.2's indexer makes 8192 elements inside layers of 7168."""
    model = load_model(name)
    assert {block.output_width for block in model.blocks if block.is_layer} == {model.hidden}


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("host", [1, 3])
def test_layers_in_host_memory_cost_the_same_in_columns_as_in_the_plan(vpp: int, host: int) -> None:
    """At a rate that no kernels hide: copies of each chunk's first layers, less all of its layers'
    kernels, each way."""
    cluster = cluster_of(8, node=8)
    node = cluster.groups[0].kind
    slow = replace(node, host=replace(node.host, pcie=replace(node.host.pcie, bandwidth=1e6)))
    problem = problem_of(
        NARROW,
        replace(cluster, groups=(replace(cluster.groups[0], kind=slow),)),
        runtime=ANY,
        seq_len=256,
    )
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    grid = Grid(dp=2, tp=2, sp=True, pp=2, vpp=vpp, host=host, zero=1, schedule=schedule)
    plain = replace(grid, host=0)
    costs, done = step_costs(problem, grid, price_grid(problem, grid)), simulate_grid(problem, grid)
    kept = step_costs(problem, plain, price_grid(problem, plain))
    assert path_seconds(problem, grid, costs) <= done.step_time_s
    for chunk in range(grid.pp * grid.vpp):
        (one,) = done.costs.families[0, chunk, 0].slices
        assert costs.forward_s[chunk] == pytest.approx(float(one.forward_s[0]), rel=1e-12)
        assert costs.backward_s[chunk] == pytest.approx(float(one.backward_s[0]), rel=1e-12)
        assert costs.saved_bytes[chunk] == int(one.saved_bytes[0])
        layers, moved = (
            12 // (grid.pp * grid.vpp),
            int(kept.saved_bytes[chunk] - costs.saved_bytes[chunk]),
        )
        if 0 < chunk < grid.pp * grid.vpp - 1:
            assert costs.saved_bytes[chunk] * layers == kept.saved_bytes[chunk] * (layers - host)
            waits = costs.parts[:, chunk, PART_NAMES.index("host")]
            assert waits == pytest.approx(
                moved / slow.host.pcie.achieved - kept.parts[:, chunk, : len(PARTS)].sum(axis=1),
                rel=1e-9,
            )


@in_both
def test_groups_of_an_axis_that_lie_unlike_are_priced_as_the_cheapest_of_them() -> None:
    """Rings of stride 3 on nodes of 4: some lie in a node, whose cards are slower to reach than the
    next node's, and some in two."""
    grid = parse_grid(
        "cp2 pp3 dp8 mbs2 zero3 shard2 recompute=selective schedule=gpipe order=tp-pp-cp-ep-dp"
    )
    problem = problem_of(
        NARROW,
        cluster_of(48, node=4, accelerator="l40s"),
        runtime=ANY,
        global_batch=16,
        seq_len=4096,
    )
    simulated = simulate_grid(problem, grid)
    assert (
        path_seconds(problem, grid, step_costs(problem, grid, price_grid(problem, grid)))
        <= simulated.step_time_s
    )
    bounded = bound_space(problem, around(grid, alike=True), facts_of(problem), capacity=10**15)
    for place in range(0, bounded.members.num_members, 1 if in_proof() else 3):
        member = member_grid(bounded.members, place)
        assert bounded.seconds[place] <= simulate_grid(problem, member).step_time_s, member


def test_keys_that_some_readers_share_cost_no_more_than_in_the_plan() -> None:
    """tp 4 leaves 2 of 8 key heads, which 4 members of Ulysses read: columns priced two copies of
    each, 0.1 % of the step too much."""
    problem, text = (
        llama_405b().problem,
        (
            "tp4 cp8 ulysses4 pp128 dp4 mbs16 zero1 shard8 recompute=full schedule=1f1b"
            " order=tp-cp-ep-pp-dp"
        ),
    )
    grid = parse_grid(text)
    costs, done = step_costs(problem, grid, price_grid(problem, grid)), simulate_grid(problem, grid)
    for chunk in range(grid.pp):
        (whole,) = done.costs.families[0, chunk, 0].slices
        assert costs.forward_s[chunk] <= float(whole.forward_s[0])
        assert costs.backward_s[chunk] <= float(whole.backward_s[0])
    assert path_seconds(problem, grid, costs) <= done.step_time_s


@pytest.mark.parametrize(
    "text",
    [
        (
            "cp4 ulysses4 ep2 pp2 vpp2 dp1 mbs8 zero0 offload=100 schedule=interleaved-1f1b"
            " recompute_norms=on"
        ),
        "cp4 ep4 pp2 vpp2 dp1 mbs4 zero1 offload=50 schedule=interleaved-1f1b",
        "cp4 pp2 dp1 mbs8 zero0 schedule=1f1b",
        "tp4 sp pp2 dp1 mbs8 zero0 schedule=1f1b",
        "tp2 sp cp2 ulysses2 ep2 etp2 pp2 dp1 mbs2 zero0 recompute=full schedule=1f1b",
    ],
)
def test_members_of_a_context_group_share_the_tokens_of_experts(text: str) -> None:
    """273.07 of 4096 tokens an expert: columns rounded them in every quarter of a sample, 0.7 %
    more than the plan's experts work on."""
    grid = parse_grid(text)
    problem = problem_of(
        load_model("qwen1.5-moe-a2.7b"), cluster_of(8, node=8), global_batch=64, seq_len=4096
    )
    problem = under(problem, grid.options)
    costs, done = step_costs(problem, grid, price_grid(problem, grid)), simulate_grid(problem, grid)
    assert path_seconds(problem, grid, costs) <= done.step_time_s
    for chunk in range(grid.pp * grid.vpp):
        (whole,) = done.costs.families[0, chunk, 0].slices
        for name in ("forward_s", "backward_s", "weight_s"):
            assert getattr(costs, name)[chunk] == pytest.approx(
                float(getattr(whole, name)[0]), rel=1e-12
            ), name


@pytest.mark.parametrize("recompute", chosen(Recompute, [Recompute.FULL]))
def test_modules_that_predict_further_tokens_are_no_layers(recompute: Recompute) -> None:
    """They stand beside the head and nothing of them runs again: the last stage costs the same in
    columns as in the plan."""
    problem = problem_of(
        load_model("mimo-7b"),
        cluster_of(8, node=8),
        runtime=RUNTIMES[0],
        global_batch=8,
        seq_len=4096,
    )
    grid = Grid(tp=2, sp=True, pp=2, dp=2, recompute=recompute, schedule="1f1b")
    costs, done = step_costs(problem, grid, price_grid(problem, grid)), simulate_grid(problem, grid)
    bounded = bound_space(problem, around(grid, alike=False), facts_of(problem), capacity=10**15)
    assert path_seconds(problem, grid, costs) <= done.step_time_s
    for chunk in range(2):
        (slice_costs,) = done.costs.families[0, chunk, 0].slices
        assert costs.backward_s[chunk] == float(slice_costs.backward_s[0])
        assert costs.saved_bytes[chunk] == int(slice_costs.saved_bytes[0])
    for place in range(bounded.members.num_members):
        member = member_grid(bounded.members, place)
        simulated = simulate_grid(problem, member)
        assert bounded.seconds[place] <= simulated.step_time_s, member
        assert np.floor(bounded.memory[place]) <= simulated.need, member


def uncontended(problem: Problem, grid: Grid) -> tuple[SimulatedPlan, float]:
    """The simulated plan, and B1 in seconds where kernels and sends beside collectives are no
    slower, which no path of tasks knows."""
    problem = replace(problem, constants=replace(problem.constants, overlap_slowdown=1.0))
    done, costs = simulate_grid(problem, grid), step_costs(problem, grid, price_grid(problem, grid))
    assert (
        done.program.templates[
            int(done.program.instances.template[int(done.timeline.finish.argmax())])
        ].kind
        is TaskKind.STEP
    )
    return done, path_seconds(problem, grid, replace(costs, shares=np.zeros_like(costs.shares)))


def is_aligned(problem: Problem, grid: Grid) -> bool:
    """Nodes cut no axis: a class a pipeline rank, and all groups of an axis lie alike."""
    size = 1
    for axis in (a for a in grid.order if a in ("tp", "cp", "dp", "pp")):
        size *= getattr(grid, axis)
        if any(
            size % tier.num_devices and tier.num_devices % size for tier in problem.cluster.tiers()
        ):
            return False
    return True


def shares_more(problem: Problem, grid: Grid) -> bool:
    """Some gradients are summed over more devices than dp x cp, a table is tied over two stages:
    columns leave out what those sums take."""
    priced = price_grid(problem, grid)
    return bool(priced.meshes.sync.spread[:, priced.mesh_row].any()) or (
        problem.model is WIDE and grid.pp > 1
    )


DRAWN = many(5, 160)
"""Random grids of each comparison."""
ALIKE = (
    "forward_s",
    "backward_s",
    "weight_s",
    "gather_s",
    "reduce_s",
    "tied_s",
    "saved_bytes",
    "restored_bytes",
)


def assert_priced_alike(problem: Problem, grid: Grid, done: SimulatedPlan) -> None:
    """The columns' chunks are those of the plan's first families, or take less where gradients are
    shared with more devices."""
    costs, equal = (
        step_costs(problem, grid, price_grid(problem, grid)),
        not shares_more(problem, grid),
    )
    for (_, chunk, number), family in done.costs.families.items():
        if not number:
            for name in ALIKE:
                found, wanted = (
                    float(getattr(family.slices[0], name)[0]),
                    float(getattr(costs, name)[chunk]),
                )
                where = (name, chunk, problem.runtime.name, grid)
                assert wanted <= found * (1 + 1e-9) + 1e-15, where
                if equal:
                    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-15), where


@in_both
def test_columns_price_chunks_as_the_plan_does() -> None:
    """To 1e-9 where no gradient is shared with more devices than columns know of; never more than
    the plan where it is."""
    draw = random.Random(9)
    alike = 0
    for _ in range(DRAWN):
        problem, grid = drawn(draw)
        if is_aligned(problem, grid):
            assert_priced_alike(problem, grid, simulate_grid(problem, grid))
            alike += not shares_more(problem, grid)
    assert alike > DRAWN // 4


def test_path_is_the_longest_of_the_program() -> None:
    draw = random.Random(9)
    aligned = 0
    for _ in range(DRAWN):
        problem, grid = drawn(draw)
        done, path = uncontended(problem, grid)
        if is_aligned(problem, grid) and not shares_more(problem, grid):
            # The walk takes off what sums in another order may round.
            assert path == pytest.approx(path_seconds_of(done), rel=1e-6), (
                f"{problem.runtime.name} {grid}"
            )
            aligned += 1
        # Classes of one pipeline rank differ in their borders: B1 takes the fastest.
        assert path <= path_seconds_of(done), f"{problem.runtime.name} {grid}"
    assert aligned > DRAWN // 6


ORDERS = ("gpipe", "1f1b", "interleaved-1f1b")
EVERY = [
    pytest.param(
        runtime,
        schedule,
        zero,
        id=f"{runtime.name}-{schedule}-{zero}",
        marks=[pytest.mark.proof] if (i + zero) % 3 != j or (i // 3 + zero) % 2 else [],
    )
    for i, runtime in enumerate(RUNTIMES)
    for j, schedule in enumerate(ORDERS)
    for zero in range(4)
]
"""Outside proofs any stage of ZeRO meets any schedule, and half of the runtimes."""


@pytest.mark.parametrize(("runtime", "schedule", "zero"), EVERY)
def test_path_of_every_schedule_and_switch(runtime: Runtime, schedule: str, zero: int) -> None:
    vpp = 3 if schedule == "interleaved-1f1b" else 1
    grid = Grid(tp=2, sp=True, pp=4, dp=2, vpp=vpp, schedule=schedule, zero=zero)
    problem = problem_of(WIDE, cluster_of(16, node=8), runtime=runtime, global_batch=16)
    done, path = uncontended(problem, grid)
    assert path <= path_seconds_of(done)
    # Columns leave out gains that tp sums too, and from ZeRO-2 on what a tied table's second holder
    # gathers and copies for itself.
    if zero < 2:
        done, path = uncontended(problem, replace(grid, tp=1, sp=False, cp=2))
        assert path == pytest.approx(path_seconds_of(done), rel=1e-6)
    done, costs = simulate_grid(problem, grid), step_costs(problem, grid, price_grid(problem, grid))
    assert costs.shares.max() > 0.0
    assert path_seconds(problem, grid, costs) <= done.step_time_s


def test_sends_beside_gathers_take_longer() -> None:
    """Interleaved on 16,384 H100: what sends lose to gathers and reductions of the same card is all
    but a tenth of what B1 left out."""
    problem, grid = (
        llama_405b().problem,
        parse_grid("tp8 sp cp2 pp8 vpp16 dp128 mbs1 zero1 schedule=interleaved-1f1b"),
    )
    costs, step = (
        step_costs(problem, grid, price_grid(problem, grid)),
        simulate_grid(problem, grid).step_time_s,
    )
    path = path_seconds(problem, grid, costs)
    apart = path_seconds(problem, grid, replace(costs, shares=np.zeros_like(costs.shares)))
    assert apart < path <= step
    assert step - path < 0.1 * (step - apart)
