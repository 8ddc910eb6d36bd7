"""General plans through cells: folded equal to unfolded, the zoo, generated plans, mixed kinds.
Grids: see `test_grids_as_plans`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, seed

from shardwright.errors import StrategyError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator import simulate_plan as plan_simulator
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.resolve_stages_edges_and_device_classes import resolved_plan
from shardwright.simulator.simulate_plan import (
    SimulatedPlan,
    plan_of_grid,
    simulate_grid,
    simulate_plan,
)
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_plan import parse_plan
from tests.jobs import training_job
from tests.search.problems import real_problem
from tests.simulator.paths import path_seconds_of
from tests.strategy.plans import Case, plans
from tests.strategy.zoo_models import dense
from tests.strategy.zoo_plans import ZooPlan, zoo, zoo_plan
from tests.tiers import cases, examples, in_both, random_of

LEFT_OUT = {
    "grad.overlap": (
        "two holders compute a gradient of partly the same tokens: no sum of parts is right"
    )
}
"""Rules that a generated plan, legal by structure, may break when it is lowered, and why."""


def problem_of(case: ZooPlan) -> Problem:
    return Problem(
        model=case.model,
        cluster=parse_cluster(case.cluster),
        job=case.job,
        runtime=load_runtime("megatron-core"),
    )


FEW = 16
"""Devices of a plan that is simulated device by device, too."""


@pytest.mark.parametrize("name", cases([case.name for case in zoo() if case.trains], 24))
def test_the_zoo_simulates_folded_exactly(name: str) -> None:
    """All tasks run; the longest path is a lower bound; every item of memory is there; and each
    device alone does what its class does."""
    case = zoo_plan(name)
    problem = problem_of(case)
    found = simulate_plan(problem, case.plan)
    assert 0.0 < path_seconds_of(found) <= found.step_time_s * (1 + 1e-12)
    assert sorted(d for c in found.program.classes for d in c.devices) == sorted(
        {d for lane in found.program.stages for s in lane for d in s.devices}
    )
    for memory in found.memory:
        assert all(size >= 0 for _, size in memory.items)
        assert 0 < memory.allocated <= memory.reserved
    if case.plan.devices <= FEW:
        assert_folds(problem, found, simulate_plan(problem, case.plan, unfolded=True))


def assert_folds(problem: Problem, folded: SimulatedPlan, unfolded: SimulatedPlan) -> None:
    assert unfolded.step_time_s == pytest.approx(folded.step_time_s, rel=1e-12)
    memory = {
        d: dict(m.items)
        for c, m in zip(folded.program.classes, folded.memory, strict=True)
        for d in c.devices
    }
    for device_class, alone in zip(unfolded.program.classes, unfolded.memory, strict=True):
        assert memory[device_class.devices[0]] == dict(alone.items)


UNEVEN_HEAD = """plan uneven devices 6
lane main samples 1 in 1
  stages embed+layers:2, layers:2+head.norm on 0, 0
    all = .
  stages head.logits+head.loss on 0
    all = s3@1 x2@3 via ring
    head = x5
order table(main)
  0: 0F0 1F0 2F0 2B0 1B0 0B0
  1: 2F0 2B0
"""


def test_devices_that_read_unlike_parts_of_a_stream_that_more_devices_hold_are_told_apart() -> None:
    """Thirds of 64 positions are 22, 21 and 21; and of five devices that read what six hold, some
    have both copies among them."""
    problem = generated_problem(
        Case(plan=parse_plan(UNEVEN_HEAD), model=dense(layers=4), global_batch=1, seq_len=64)
    )
    plan = parse_plan(UNEVEN_HEAD, model=problem.model)
    folded = simulate_plan(problem, plan)
    assert_folds(problem, folded, simulate_plan(problem, plan, unfolded=True))
    kept = [dict(memory.items)["activations"] for memory in folded.memory]
    assert sorted(set(kept))[-1] > sorted(set(kept))[-2] > 0


SLICED = """plan sliced devices 3
lane main samples 1 in 1 slices 1:1
  stages embed+layers:4+head on 0
    all = s3 via ring
order terapipe(main)
"""


def test_logits_of_slices_are_those_of_one_slice() -> None:
    """Of 64 positions in two slices, 11 of 32 are in each third but the last: no device has 22 at
    once."""
    model = dense(layers=4)
    problem = generated_problem(
        Case(plan=parse_plan(SLICED, model=model), model=model, global_batch=1, seq_len=64)
    )
    plan = parse_plan(SLICED, model=model)
    folded = simulate_plan(problem, plan)
    assert_folds(problem, folded, simulate_plan(problem, plan, unfolded=True))
    logits = [dict(memory.items)["logits"] for memory in folded.memory]
    assert logits == [
        11 * model.vocab * problem.runtime.logits_bytes,
        10 * model.vocab * problem.runtime.logits_bytes,
    ]


def test_replicas_that_lie_unequally_in_nodes_make_six_classes() -> None:
    """Replicas of 12 devices on nodes of 8: zoo section 6."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:48", seq_len=4096, global_batch=48)
    grid = parse_grid("tp4 pp3 dp4 mbs1 order=tp-pp-dp layers=11,11,10")
    plan = plan_of(grid, model=problem.model, global_batch=48)
    folded = simulate_plan(problem, plan)
    assert sorted(len(c.devices) for c in folded.program.classes) == [8] * 6
    assert (0, 1, 2, 3, 24, 25, 26, 27) in [tuple(c.devices) for c in folded.program.classes]
    assert_folds(problem, folded, simulate_plan(problem, plan, unfolded=True))


def generated_problem(case: Case) -> Problem:
    whole, rest = case.plan.devices // 8 * 8, case.plan.devices % 8
    cluster = "+".join(f"h100-sxm:{count}" for count in (whole, rest) if count)
    names = {s for b in case.model.blocks for s in (b.sequence, b.memory) if s} - {"text"}
    sequences = (
        SequenceLength(name="text", tokens=case.seq_len),
        *(SequenceLength(name=n, tokens=16) for n in sorted(names)),
    )
    job = TrainingJob(sequences=sequences, global_batch=case.global_batch)
    return Problem(
        model=case.model,
        cluster=parse_cluster(cluster),
        job=job,
        runtime=load_runtime("megatron-core"),
    )


MOST_ROUNDS = 10
"""Rounds of plans after which fewer of them are simulated than should be."""


@in_both
def test_generated_plans_simulate_folded_exactly_or_say_why() -> None:
    """Most do: of as few as are drawn at a time now and then half do not, and more are drawn."""
    outcomes: Counter[str] = Counter()

    def simulate_plans(number: int) -> None:
        @seed(random_of(f"folded plans {number}").randrange(10**9))
        @examples(25, 2000, suppress_health_check=list(HealthCheck))
        @given(plans())
        def simulated(case: Case) -> None:
            problem = generated_problem(case)
            try:
                found = simulate_plan(problem, case.plan)
            except StrategyError as error:
                if error.rule not in LEFT_OUT:
                    raise
                outcomes[str(error.rule)] += 1
                return
            outcomes["simulated"] += 1
            assert 0.0 < path_seconds_of(found) <= found.step_time_s * (1 + 1e-12)
            assert all(size >= 0 for memory in found.memory for _, size in memory.items)
            assert_folds(problem, found, simulate_plan(problem, case.plan, unfolded=True))

        simulated()

    for number in range(MOST_ROUNDS):
        simulate_plans(number)
        if outcomes["simulated"] > 0.6 * outcomes.total():
            break
    assert outcomes["simulated"] > 0.6 * outcomes.total()


READERS_OF_TWO_COPIES = """\
plan readers devices 6
lane main samples 1 in 1
  stages embed+layers:3+head.norm on 0
    all = .
  stages head.logits on 0
    all = x2
    head = x6
  stages head.loss on 0
    all = .
order table(main)
  0: 0F0 1F0 2F0 2B0 1B0 0B0
  1: 1F0 1B0
"""


def test_readers_of_different_copies_are_no_family() -> None:
    """Devices 2 and 3 read the first of two copies, 4 and 5 the second, which comes later: they
    hold as much and wait for other ones."""
    model = dense(layers=3)
    plan = parse_plan(READERS_OF_TWO_COPIES, model=model)
    problem = generated_problem(Case(plan=plan, model=model, global_batch=1, seq_len=64))
    folded = simulate_plan(problem, plan)
    assert [tuple(c.devices) for c in folded.program.classes] == [(0,), (1,), (2, 3), (4, 5)]
    assert_folds(problem, folded, simulate_plan(problem, plan, unfolded=True))


UNLIKE = {
    # Copies of a replica: one of them sums with the other replicas and sends the sum to the rest.
    "copies": "stages embed+8+head on 0\n    all = b[2:2:2]{., .+1, x2+2}\norder gpipe(main)",
    # Equal parts of a slice leave a remainder where those of the sequence leave none.
    "slices": (
        "slices 1:1:3\n  stages embed+8+head on 0\n    all = s4 via gather\norder terapipe(main)"
    ),
    # Equal receivers of unequal senders: each fills its own link.
    "partners": (
        "stages embed+4 on 0\n    all = t2\n    core = h[3:1]{., .+1}\n  stages 4+head on 2\n   "
        " all = x2\norder 1f1b(main)"
    ),
    # A device of two stages beside one of a single stage.
    "stages": (
        "stages embed+4 on 0\n    all = b2\n  stages 4+head on 1\n    all = b2\norder table(main)\n"
        "  0: 0F0 0B0\n  1: 0F0 1F0 1B0 0B0\n  2: 1F0 1B0"
    ),
}
"""Plans whose devices look alike until one asks with whom they sum, send or share, by what tells
them apart."""


@pytest.mark.parametrize("name", UNLIKE)
def test_devices_that_only_look_alike_are_told_apart(name: str) -> None:
    line = "" if UNLIKE[name].startswith("slices") else "\n "
    plan = parse_plan(
        f"plan unlike devices 8\nzero all: all/1/1\nlane main samples 12 in 1{line}"
        f" {UNLIKE[name]}\n"
    )
    job = training_job(seq_len=64, global_batch=12)
    problem = Problem(
        model=dense(),
        cluster=parse_cluster("h100-sxm:8"),
        job=job,
        runtime=load_runtime("megatron-core"),
    )
    folded = simulate_plan(problem, plan)
    assert_folds(problem, folded, simulate_plan(problem, plan, unfolded=True))


TWO = """plan two devices 16
lane main samples 16 in 8
  stages embed+4, 4+head on 0, 8
    all = b2 t4
    stream = b2 s4
order 1f1b(main)
"""


def mixed(cluster: str) -> SimulatedPlan:
    job = training_job(seq_len=2048, global_batch=16)
    return simulate_plan(
        Problem(
            model=dense(),
            cluster=parse_cluster(cluster),
            job=job,
            runtime=load_runtime("megatron-core"),
        ),
        parse_plan(TWO),
    )


def test_the_slower_kind_takes_longer() -> None:
    """The same four layers on A100s and on H100s; swapping the kinds swaps the chunks' seconds."""
    slow_first, fast_first = (
        mixed("a100-sxm-80gb:8+h100-sxm:8"),
        mixed("h100-sxm:8+a100-sxm-80gb:8"),
    )
    slow, fast = mixed("a100-sxm-80gb:16"), mixed("h100-sxm:16")

    def forward(found: SimulatedPlan, chunk: int) -> float:
        return float(found.costs.step(0, chunk, 0).forward_s[0])

    for chunk in (0, 1):
        assert forward(fast, chunk) < forward(slow, chunk)
    assert forward(slow_first, 0) == pytest.approx(forward(slow, 0), rel=1e-12)
    assert forward(slow_first, 1) == pytest.approx(forward(fast, 1), rel=1e-12)
    assert forward(fast_first, 0) == pytest.approx(forward(fast, 0), rel=1e-12)
    assert forward(fast_first, 1) == pytest.approx(forward(slow, 1), rel=1e-12)
    assert fast.step_time_s < min(slow_first.step_time_s, fast_first.step_time_s)
    assert max(slow_first.step_time_s, fast_first.step_time_s) <= slow.step_time_s * (1 + 1e-3)


def test_two_groups_of_one_kind_are_the_uniform_cluster() -> None:
    one, two = mixed("h100-sxm:16"), mixed("h100-sxm:8+h100-sxm:8")
    assert two.step_time_s == pytest.approx(one.step_time_s, rel=1e-12)
    assert [dict(m.items) for m in two.memory] == [dict(m.items) for m in one.memory]


def test_equal_parts_on_unlike_devices_are_not_one_family() -> None:
    """Two replicas of one tree, one of them on a slower kind: each its own class, and the step
    waits for the slower."""
    text = (
        "plan mixed devices 2\nlane main samples 4 in 2\n  stages embed+16+head on 0\n    all ="
        " b2\norder 1f1b(main)\n"
    )
    model = load_model("llama-3.2-1b")
    job = training_job(seq_len=2048, global_batch=4)
    runtime = load_runtime("megatron-core")
    seconds = {}
    for cluster in ("h100-sxm:1+v100-sxm-32gb:1", "h100-sxm:2", "v100-sxm-32gb:2"):
        problem = Problem(model=model, cluster=parse_cluster(cluster), job=job, runtime=runtime)
        found = simulate_plan(problem, parse_plan(text))
        seconds[cluster] = (found.step_time_s, len(found.program.classes))
    assert seconds["h100-sxm:1+v100-sxm-32gb:1"][1] == 2
    assert seconds["h100-sxm:2"][1] == 1
    assert (
        seconds["h100-sxm:1+v100-sxm-32gb:1"][0]
        >= 0.9 * seconds["v100-sxm-32gb:2"][0]
        > seconds["h100-sxm:2"][0]
    )


def problem_of_cluster(cluster: str) -> Problem:
    job = training_job(seq_len=2048, global_batch=34)
    return Problem(
        model=dense(),
        cluster=parse_cluster(cluster),
        job=job,
        runtime=load_runtime("megatron-core"),
    )


WIDE = """plan wide devices 78
lane main samples 34 in 1
  stages embed+8+head on 10
    all = b17 t4
order gpipe(main)
"""


def test_one_plan_on_two_clusters_of_as_many_devices_a_kind() -> None:
    """Behind 8 devices, islands of 72 or of 8: a layout of the one cluster is none of the other,
    whichever is asked first."""
    plan, clusters = parse_plan(WIDE), ("h100-sxm:8+gb200-nvl72:72", "h100-sxm:8+h200-sxm:72")
    found = {}
    for order in (clusters, clusters[::-1]):
        resolved_plan.cache_clear()
        plan_simulator._program.cache_clear()
        for cluster in order:
            result = simulate_plan(problem_of_cluster(cluster), plan)
            found.setdefault(cluster, []).append((result.step_time_s, len(result.program.classes)))
    assert all(first == second for first, second in found.values())
    assert [found[cluster][0][1] > 1 for cluster in clusters] == [False, True]


def test_the_peak_is_that_of_every_kind() -> None:
    """Slow devices in front of fast ones: what the cluster could do at most is the sum over both,
    not twice the slow ones'."""
    plan = parse_plan(TWO)
    shares = {}
    for cluster in ("t4:8+h100-sxm:8", "h100-sxm:8+t4:8"):
        job = training_job(seq_len=2048, global_batch=16)
        problem = Problem(
            model=dense(),
            cluster=parse_cluster(cluster),
            job=job,
            runtime=load_runtime("megatron-core"),
        )
        found = predict_plan(problem, plan, with_sources=False)
        shares[cluster] = found.mfu_full * found.step_time_s
    assert shares["t4:8+h100-sxm:8"] == pytest.approx(shares["h100-sxm:8+t4:8"], rel=1e-12)


def test_a_plan_that_was_laid_before_is_priced_anew() -> None:
    """On a cluster of the same sizes with other links, and under other constants, as if it were
    asked first."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:16", seq_len=4096, global_batch=32)
    grid = parse_grid("tp4 sp pp2 dp2 mbs1 zero1")
    slow = replace(problem, cluster=parse_cluster("a100-sxm-80gb:16"))
    other = replace(problem, constants=replace(problem.constants, passes_fused=2.0))
    asked = (problem, slow, other, problem)
    after = [simulate_grid(one, grid).step_time_s for one in asked]
    alone = []
    for one in asked:
        resolved_plan.cache_clear()
        plan_simulator._program.cache_clear()
        alone.append(simulate_grid(one, grid).step_time_s)
    assert after == alone
    assert len(set(after)) == 3


def test_an_unchecked_layout_serves_a_plan_that_is_checked() -> None:
    """A plan is laid out once for both, and checked although its layout is there."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:16", seq_len=4096, global_batch=32)
    other = replace(problem, job=training_job(seq_len=4096, global_batch=64))
    plan = plan_of_grid(problem, parse_grid("tp4 sp pp2 dp2 mbs1 zero1"))
    resolved_plan.cache_clear()
    simulate_plan(problem, plan, verified=True)
    simulate_plan(problem, plan)
    assert resolved_plan.cache_info().misses == 1
    simulate_plan(other, plan, verified=True)
    with pytest.raises(StrategyError):
        simulate_plan(other, plan)
