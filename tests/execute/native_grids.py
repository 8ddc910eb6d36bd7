"""Grids of four ranks, drawn among all that PyTorch's engine runs: what no list of cases thinks
of."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from shardwright.execute.native.grids_that_torch_can_run import why_not_expressible
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

ORDERS = (
    ("tp", "cp", "ep", "dp", "pp"),
    ("dp", "ep", "cp", "tp", "pp"),
    ("pp", "ep", "tp", "dp", "cp"),
    ("cp", "ep", "tp", "pp", "dp"),
    ("ep", "tp", "dp", "cp", "pp"),
)
PIPELINES = (
    (1, "1f1b"),
    (1, "gpipe"),
    (1, "zb-h1"),
    (2, "interleaved-1f1b"),
    (2, "zb-v"),
    (2, "dualpipe-v"),
)


def drawn_grids(random: Random, *, model: Model, job: TrainingJob, ranks: int) -> Iterator[Grid]:
    """Legal grids that divide experts or positions, without end."""
    facts = grid_facts(
        model, devices=ranks, global_batch=job.global_batch, seq_len=job.sequence_length
    )
    while True:
        tp, cp, pp, ulysses = (random.choice((1, 1, 2, 4)) for _ in range(4))
        if ranks % (tp * cp * pp) or cp % ulysses:
            continue
        zero = random.randrange(4)
        vpp, schedule = random.choice(PIPELINES) if pp > 1 else PIPELINES[0]
        grid = Grid(
            tp=tp,
            sp=tp > 1 and random.random() < 0.7,
            cp=cp,
            ulysses=ulysses,
            gather=cp > ulysses and random.random() < 0.5,
            ep=random.choice((1, 2, 4)) if facts.experts else 1,
            etp=random.choice((1, 1, 2)) if facts.experts else 1,
            dp=ranks // (tp * cp * pp),
            pp=pp,
            vpp=vpp,
            microbatch=random.choice((1, 2)),
            zero=zero,
            shard=random.choice((0, 0, 2)) if zero else 0,
            recompute=random.choice(
                (Recompute.NONE, Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
            ),
            schedule=schedule,
            order=random.choice(ORDERS),
        )
        divides = cp * grid.ep * grid.etp > 1
        if (
            divides
            and not violations(grid, facts=facts, general=True)
            and why_not_expressible(model, grid, job=job) is None
        ):
            yield grid
