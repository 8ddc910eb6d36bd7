"""Peak memory: microbatches in flight by schedule, the peak of the simulated step, and how choices
move it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import (
    activation_bytes,
    allocated_bytes,
    in_flight_microbatches,
    reserved_bytes,
)
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.dtype import Dtype
from shardwright.job.training_job import Optimizer
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import AttentionKernel
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.simulator.simulate_plan import footprint_of_grid, simulate_grid, simulate_plan
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.parse_plan import parse_plan
from tests.cost.prices import price_grid
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.simulator.general import problem_for
from tests.simulator.levels import peak_levels
from tests.strategies import dense_model, expert_model
from tests.tiers import in_both, many, random_of

DENSE, SPARSE = dense_model(layers=12), expert_model(dense=1, sparse=11, experts=8)
ANY = replace(
    RUNTIME,
    name="any",
    schedules=("gpipe", "1f1b", "interleaved-1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    optimizer_offload=True,
)


def peaks(schedule: str, *, ranks: int, chunks: int, microbatches: int) -> list[int]:
    table = schedule_table(
        schedule, num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches
    )
    return [int(in_flight_microbatches(table, rank).sum(axis=1).max()) for rank in range(ranks)]


def test_microbatches_in_flight() -> None:
    assert peaks("gpipe", ranks=4, chunks=1, microbatches=8) == [8, 8, 8, 8]
    # Narayanan et al. 2019 (PipeDream-Flush): rank r holds p - r, at most the microbatches there
    # are.
    assert peaks("1f1b", ranks=4, chunks=1, microbatches=8) == [4, 3, 2, 1]
    assert peaks("1f1b", ranks=4, chunks=1, microbatches=2) == [2, 2, 2, 1]
    table = schedule_table("1f1b", num_ranks=4, chunks_per_rank=1, num_microbatches=8)
    assert in_flight_microbatches(table, 1)[:, 0].tolist() == [1, 2, 3]
    # Narayanan et al. 2021, section 2.2: 2 (p - r - 1) + (v - 1) p + 1 chunks.
    assert peaks("interleaved-1f1b", ranks=4, chunks=3, microbatches=8) == [15, 13, 11, 9]


def memory_of(problem: Problem, grid: Grid) -> np.ndarray:
    assert is_legal(problem, grid), grid
    return np.array([stage.allocated for stage in footprint_of_grid(problem, grid)[0]])


@in_both
def test_activations_are_the_peak_of_the_simulated_step() -> None:
    """Bytes appear when a forward ends and go when its backward does: in the order of the clock the
    peak is the same."""
    draw = random_of(21)
    judged = 0
    while judged < many(10, 300):
        experts = draw.random() < 0.4
        grid = random_grid(draw, experts=experts, schedules=("1f1b", "gpipe"))
        problem = problem_of(
            SPARSE if experts else DENSE,
            cluster_of(grid.devices, node=grid.devices),
            runtime=ANY,
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 2, 6)),
        )
        if not is_legal(problem, grid):
            continue
        judged += 1
        done = simulate_grid(problem, grid)
        tasks, templates = done.program.instances, done.program.templates
        kind, chunk = templates.kind[tasks.template], templates.chunk[tasks.template]
        whole = templates.piece[tasks.template] == templates.pieces[tasks.template] - 1
        change = (kind == TaskKind.F).astype(np.int64) - ((kind == TaskKind.B) & whole)
        saved = np.zeros((len(done.program.classes), grid.pp * grid.vpp + 1), dtype=np.int64)
        for klass, one in enumerate(done.program.classes):
            for lane, number, family in one.families:
                saved[klass, number] = int(done.costs.step(lane, number, family).saved_bytes[0])
        change = change * saved[tasks.klass, chunk]
        simulated = peak_levels(
            done.timeline.finish, change, tasks.klass, len(done.program.classes)
        )
        predicted = [dict(stage.items)["activations"] for stage in done.memory]
        assert simulated.tolist() == predicted, grid
        costs = step_costs(problem, grid, price_grid(problem, grid))
        least = activation_bytes(
            order_table(grid, microbatches=microbatches_of(problem, grid)), costs
        )
        assert all(
            least[one.families[0][1] % grid.pp] <= size
            for one, size in zip(done.program.classes, predicted, strict=True)
        ), grid
        level = np.zeros(len(done.program.classes), dtype=np.int64)
        np.add.at(level, tasks.klass, change)
        assert not level.any(), "everything saved is given back"


def test_items_add_up() -> None:
    grid = Grid(tp=2, sp=True, pp=3, dp=2, zero=1, recompute=Recompute.FULL, recompute_layers=1)
    problem = problem_of(DENSE, cluster_of(12, node=4), runtime=ANY)
    costs = step_costs(problem, grid, price_grid(problem, grid))
    table = order_table(grid, microbatches=microbatches_of(problem, grid))
    stages = footprint_of_grid(problem, grid)[0]
    assert [s.rank for s in stages] == [0, 1, 2]
    assert sum(s.devices for s in stages) == 12
    assert [s.layers for s in stages] == ["embed + 4 layer", "4 layer", "4 layer + head"]
    for stage, least, held in zip(
        stages, allocated_bytes(table, costs), reserved_bytes(problem, table, costs), strict=True
    ):
        items = dict(stage.items)
        beyond = {name: items.pop(name) for name in ("fragmentation", "communication", "context")}
        assert sum(items.values()) == stage.allocated >= least
        assert stage.reserved == stage.allocated + sum(beyond.values()) >= held
        assert stage.allocator_bytes == stage.allocated + beyond["fragmentation"]
        assert beyond["fragmentation"] >= stage.allocated * ANY.allocator_reserve_percent // 100
        assert all(size >= 0 for _, size in stage.items)


def test_states_of_a_dense_model_by_hand() -> None:
    """16 bytes a parameter and 2 more for fp32 gradients (Rajbhandari et al. 2020 count 16 with
    fp16 ones): 2 + 4 + 12."""
    problem = problem_of(DENSE, cluster_of(8, node=8), runtime=ANY)
    parameters = DENSE.num_parameters
    ends = DENSE.blocks[0].num_parameters + DENSE.blocks[-1].num_parameters
    layer = DENSE.blocks[1].num_parameters

    def items(zero: int) -> dict[str, int]:
        (stage,) = footprint_of_grid(problem, Grid(dp=8, zero=zero))[0]
        names = ("parameters", "gradients", "optimizer", "workspace")
        return {name: size for name, size in stage.items if name in names}

    part = -(-parameters // 8)
    assert items(0) == {
        "parameters": 2 * parameters,
        "gradients": 4 * parameters,
        "optimizer": 12 * parameters,
        "workspace": ANY.workspace_bytes,
    }
    assert items(1) == {**items(0), "optimizer": 12 * part}
    assert items(2) == {**items(1), "gradients": 4 * part}
    assert items(3) == {
        **items(2),
        "parameters": 2 * part + 2 * (ends + layer * (1 + ANY.gather_prefetch)),
    }


@pytest.mark.parametrize(("zero", "own"), [(0, 2), (1, 2), (2, 0), (3, 0)])
def test_parameters_own_gradients_live_beside_their_main_copy_until_they_are_reduced(
    zero: int, own: int
) -> None:
    def gradients(copy: bool) -> int:
        runtime = replace(ANY, name=f"copy-{copy}", main_grad_copy=copy)
        problem = problem_of(DENSE, cluster_of(8, node=8), runtime=runtime)
        (stage,) = footprint_of_grid(problem, Grid(dp=8, zero=zero))[0]
        return dict(stage.items)["gradients"]

    assert gradients(True) - gradients(False) == own * DENSE.num_parameters


@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "chain",
    [
        # Each next choice needs no more.
        [Grid(dp=4, zero=z, recompute=Recompute.SELECTIVE) for z in (0, 1, 2)],
        [Grid(dp=4, zero=1, offload=o) for o in (0, 50, 100)],
        [
            Grid(pp=2, dp=2, microbatch=m, recompute=r)
            for m in (4, 2, 1)
            for r in (Recompute.NONE, Recompute.SELECTIVE)
        ],
        [
            Grid(pp=2, dp=2),
            *(Grid(pp=2, dp=2, recompute=Recompute.FULL, recompute_layers=k) for k in (1, 3, 6)),
        ],
        [Grid(tp=t, sp=t > 1) for t in (1, 2, 4, 8)],
        [Grid(tp=4), Grid(tp=4, sp=True)],
        [Grid(cp=c) for c in (1, 2, 4)],
        [Grid(pp=p) for p in (1, 2, 3, 4)],
        [Grid(pp=4, schedule="gpipe"), Grid(pp=4)],
        [Grid(dp=d, zero=2) for d in (1, 2, 4, 8)],
    ],
)
def test_memory_is_monotone(model: object, chain: list[Grid]) -> None:
    fullest = []
    # Without sp, experts are cut over tp like the MLP.
    for grid in (replace(g, etp=g.tp) if model is SPARSE and g.sp else g for g in chain):
        problem = problem_of(
            model,
            cluster_of(grid.devices, node=grid.devices),
            runtime=ANY,
            global_batch=64,
            seq_len=512,
        )  # type: ignore[arg-type]
        # Recomputed layers trade what is kept for one layer's set while it is redone: only what is
        # kept is monotone.
        fullest.append(
            max(
                stage.allocated - dict(stage.items)["temporary"]
                for stage in footprint_of_grid(problem, grid)[0]
            )
        )
    assert fullest == sorted(fullest, reverse=True)
    assert fullest[0] > fullest[-1]


def test_longer_sequences_and_more_samples_need_more() -> None:
    sizes = []
    for seq_len, microbatch in ((256, 1), (512, 1), (512, 2), (1024, 2), (1024, 4)):
        problem = problem_of(DENSE, cluster_of(4, node=4), runtime=ANY, seq_len=seq_len)
        sizes.append(int(memory_of(problem, Grid(pp=2, dp=2, microbatch=microbatch)).max()))
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    "grid",
    [
        Grid(tp=2, sp=True, pp=2, dp=2),
        Grid(dp=8, zero=3),
        Grid(cp=2, dp=4, zero=1, recompute=Recompute.FULL),
    ],
    ids=str,
)
def test_memory_rescales_with_bytes(grid: Grid) -> None:
    """Every element twice as wide takes twice the bytes (scores written out: a fused kernel's
    statistics stay fp32)."""
    narrow = replace(
        ANY, name="narrow", attention_kernel=AttentionKernel.UNFUSED, gradient_dtype=Dtype.BF16
    )
    wide = replace(
        narrow,
        name="wide",
        gradient_dtype=Dtype.FP32,
        workspace_bytes=2 * narrow.workspace_bytes,
        logits_bytes=2 * narrow.logits_bytes,
        embedding_gradient_bytes=2 * narrow.embedding_gradient_bytes,
    )
    one = problem_of(DENSE, cluster_of(8, node=8), runtime=narrow)
    states = Optimizer(master=Dtype.BF16, states=(Dtype.BF16, Dtype.BF16))
    one = replace(one, job=replace(one.job, optimizer=states))
    job = replace(
        one.job,
        compute=Dtype.FP32,
        parameter=Dtype.FP32,
        activation=Dtype.FP32,
        optimizer=Optimizer(),
    )
    two = replace(one, runtime=wide, job=job)
    assert memory_of(two, grid).tolist() == (2 * memory_of(one, grid)).tolist()


def by_name(problem: Problem, grid: Grid) -> list[dict[str, int]]:
    assert is_legal(problem, grid), grid
    return [dict(stage.items) for stage in footprint_of_grid(problem, grid)[0]]


def test_a_tied_head_away_from_its_owner_is_a_copy_with_gradient_and_states() -> None:
    """Megatron-LM: the last stage holds the embedding's weight again, 18 bytes a parameter; on one
    stage it is stored once."""
    tied = dense_model(layers=4, tied=True)
    apart = dense_model(layers=4, tied=False)
    table = tied.vocab * tied.hidden
    for grid, more in ((Grid(dp=4), table), (Grid(pp=2, dp=2), 0), (Grid(pp=2, tp=2), 0)):
        sizes = []
        for model in (tied, apart):
            items = by_name(problem_of(model, cluster_of(4, node=4), runtime=ANY), grid)[-1]
            sizes.append(items["parameters"] + items["gradients"] + items["optimizer"])
        assert sizes[1] - sizes[0] == 18 * more, grid


def test_blocks_of_unequal_temporaries_are_not_shared() -> None:
    """What a recomputed layer makes and the head's copies add up in what the allocator holds,
    though never allocated together."""
    loose = replace(ANY, name="loose", allocator_reserve_percent=0)
    problem = problem_of(DENSE, cluster_of(4, node=4), runtime=loose)
    (none,), (full,) = (
        by_name(problem, Grid(dp=4, recompute=mode)) for mode in (Recompute.NONE, Recompute.FULL)
    )
    assert none["fragmentation"] == 0
    assert full["fragmentation"] > 0
    more = replace(loose, name="more", logits_blocks_bytes=loose.logits_bytes + 2)
    (blocks,) = by_name(replace(problem, runtime=more), Grid(dp=4))
    assert blocks["fragmentation"] == 2 * none["logits"] // loose.logits_bytes
    assert blocks["logits"] == none["logits"]


def test_a_split_vocabulary_makes_the_copies_that_its_loss_needs() -> None:
    split = replace(ANY, name="split", split_logits_bytes=4)
    whole, cut = (
        by_name(problem_of(DENSE, cluster_of(4, node=4), runtime=split), Grid(tp=t, dp=4 // t))[0][
            "logits"
        ]
        for t in (1, 2)
    )
    assert cut * 2 * ANY.logits_bytes == whole * (ANY.logits_bytes + 4)


def test_communicators_and_context_are_items() -> None:
    problem = problem_of(DENSE, cluster_of(8, node=4), runtime=ANY)
    alone = by_name(problem_of(DENSE, cluster_of(1, node=1), runtime=ANY), Grid())[0]
    assert alone["communication"] == 0
    assert alone["context"] > 0
    counts = [
        by_name(problem, grid)[0]["communication"]
        for grid in (Grid(dp=8), Grid(dp=4, tp=2), Grid(dp=2, tp=2, pp=2))
    ]
    assert counts == sorted(set(counts))
    free = replace(ANY, name="free", collective_library="any")
    here = by_name(replace(problem, runtime=free), Grid(dp=8))[0]
    assert (here["communication"], here["context"]) == (counts[0], alone["context"])
    other = by_name(
        problem_of(DENSE, cluster_of(8, node=4, accelerator="tpu-v6e"), runtime=free), Grid(dp=8)
    )[0]
    assert other["communication"] == other["context"] == 0


FOLDED = """\
plan folded devices 2
lane main samples 8 in 8
  stages embed+2, 2, 2, 2+head on 0, 1, 1, 0
    all = .
order zb-v(main)
"""


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_needs_room_for_its_gradient_whichever_stage_holds_its_weight(tied: bool) -> None:
    """1,000 x 128 elements of 2 bytes beside the logits, also where the embedding's stage on the
    same device holds the tied table."""
    model = dense_model(tied=tied)
    done = simulate_plan(problem_for(model, batch=8), parse_plan(FOLDED, model=model))
    assert [dict(memory.items)["temporary"] for memory in done.memory] == [1000 * 128 * 2, 0]
