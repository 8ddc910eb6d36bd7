"""The order of a rank's operator tasks: what brings an input, the kernels, what takes the output;
backward the other way round."""

import numpy as np

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.program.block.block_program import Phase
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.cost.prices import rows_of
from tests.program.small import cluster_of, problem_of
from tests.program.unfold import OperatorTask, program_of, unfold
from tests.strategies import dense_model

DENSE = dense_model(layers=12)


def tasks_of(grid: Grid, rank: int = 0) -> list[OperatorTask]:
    problem = problem_of(
        DENSE,
        cluster_of(grid.devices, node=grid.devices),
        global_batch=4 * grid.dp * grid.microbatch,
        seq_len=1024,
    )
    program = program_of(problem, grid)
    degrees = rows_of([grid]).degrees() | {"positions": np.array([1024 // grid.ring])}
    return list(unfold(program, rank, degrees))


def of(tasks: list[OperatorTask], operator: str, phase: Phase) -> list[str]:
    """What an operator's first layer does for the first microbatch, repeats taken together."""
    mine = [t for t in tasks if t.operator == operator and t.phase is phase and t.microbatch == 0]
    layer = min(t.layer for t in mine)
    names = [
        t.collective.value if t.collective else "kernel"
        for t in mine
        if t.layer == layer and (t.kernel or t.volume)
    ]
    return list(dict.fromkeys(names))


def test_collectives_stand_on_the_right_side_of_their_kernels() -> None:
    tasks = tasks_of(Grid(tp=4, sp=True))
    assert of(tasks, "lookup", Phase.F) == ["kernel", "reduce_scatter"]
    assert of(tasks, "qkv", Phase.F) == ["all_gather", "kernel"]
    assert of(tasks, "qkv", Phase.I) == ["kernel", "reduce_scatter"]
    assert of(tasks, "residual1", Phase.F)[0] == "reduce_scatter"
    assert of(tasks, "loss", Phase.F) == ["kernel", "all_reduce"]


def test_every_microbatch_runs_every_layer_once_forward_and_backward() -> None:
    tasks = tasks_of(Grid(pp=2, schedule="1f1b"), rank=1)
    runs = [(t.microbatch, t.layer) for t in tasks if t.operator == "down" and t.phase is Phase.F]
    assert len(runs) == len(set(runs)) == 4 * len({layer for _, layer in runs})
    assert sorted(runs) == sorted(
        (t.microbatch, t.layer) for t in tasks if t.operator == "down" and t.phase is Phase.W
    )


def test_recomputed_layers_run_again_before_their_backward() -> None:
    tasks = [
        t
        for t in tasks_of(Grid(recompute=Recompute.FULL))
        if t.operator == "down" and t.microbatch == 0 and t.layer == 1
    ]
    assert [(t.phase, t.recomputed) for t in tasks] == [
        (Phase.F, False),
        (Phase.F, True),
        (Phase.I, False),
        (Phase.W, False),
    ]
    assert not any(t.collective is Collective.ALL_GATHER for t in tasks)
