"""Any legal plan is exported to every target, or refused by an error of ours: no other exception
comes of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from shardwright.api.exports.export_plan import export_plan
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.errors import ShardwrightError
from shardwright.frameworks.export.launchers.registry import LAUNCHERS
from shardwright.frameworks.registry import TARGETS
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import AXES, Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid
from tests.frameworks.plans import facts_of, legal, stored
from tests.tiers import in_both, many, random_of

DENSE, SPARSE = ("llama-3.1-8b", "gpt2-xl"), ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite")
RUNTIMES = ("torchtitan", "megatron-core", "deepspeed", "maxtext")


def drawn(draw: Random, *, sparse: bool) -> Grid:
    """A grid whose axes are drawn without regard to each other; many are illegal."""
    cp, pp, dp = draw.choice((1, 1, 2, 4)), draw.choice((1, 1, 2, 3, 4)), draw.choice((1, 2, 4, 8))
    vpp = draw.choice((1, 2)) if pp > 1 else 1
    tp, recompute = draw.choice((1, 1, 2, 4)), draw.choice(tuple(Recompute))
    return Grid(
        tp=tp,
        sp=tp > 1 and draw.random() < 0.7,
        cp=cp,
        ulysses=draw.choice([n for n in (1, 2, 4) if cp % n == 0]),
        gather=draw.random() < 0.3,
        ep=draw.choice((1, 2, 4, 8)) if sparse else 1,
        etp=draw.choice((1, 1, 2)) if sparse else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatch=draw.choice((1, 2)),
        zero=draw.choice((0, 1, 2, 3)),
        shard=draw.choice((0, 0, 2, 4)),
        offload=draw.choice((0, 0, 50, 100)),
        host=draw.choice((0, 1)) if recompute is Recompute.NONE else 0,
        recompute=recompute,
        recompute_layers=draw.choice((0, 1)) if recompute is Recompute.FULL else 0,
        schedule=draw.choice(
            ("interleaved-1f1b", "looped-bfs")
            if vpp > 1
            else ("1f1b", "gpipe", "zb-h1")
            if pp > 1
            else ("1f1b",)
        ),
        order=tuple(draw.sample(AXES, len(AXES))),
    )


def with_idle(one: PlanOfProblem) -> PlanOfProblem:
    """The same plan on a cluster of which one more node works nothing."""
    assert one.grid is not None
    cluster = f"h100-sxm:{8 * -(-one.grid.devices // 8) + 8}"
    return replace(
        one, problem=replace(one.problem, cluster=parse_cluster(cluster)), cluster=cluster
    )


def answered(one: PlanOfProblem, target: str) -> bool:
    """Whether a target takes a plan, losses and all, and all launchers take or refuse that."""
    try:
        found = export_plan(one, target=target, allow_lossy=True)
    except ShardwrightError:
        return False
    assert all(file.text for file in (*found.files, *found.beside))
    for launcher in LAUNCHERS:
        with suppress(ShardwrightError):
            assert (
                export_plan(one, target=target, allow_lossy=True, launchers=(launcher,)).files
                == found.files
            )
    return True


@in_both
@pytest.mark.parametrize("sparse", [False, True])
def test_every_target_takes_a_plan_or_refuses_it(sparse: bool) -> None:
    draw, taken, refused = random_of(29 + sparse), 0, 0
    for _ in range(many(6, 400)):
        model, runtime = draw.choice(SPARSE if sparse else DENSE), draw.choice(RUNTIMES)
        grid = drawn(draw, sparse=sparse)
        while (grid.devices > 8 and grid.devices % 8) or not legal(grid, model):
            grid = drawn(draw, sparse=sparse)
        one = stored(canonical(grid, facts=facts_of(grid, model)), model=model, runtime=runtime)
        if draw.random() < 0.3:
            one = with_idle(one)
        for target in TARGETS:
            took = answered(one, target)
            taken, refused = taken + took, refused + (not took)
    assert taken
    assert refused


@pytest.mark.parametrize(
    "words", ["ep8 dp1 cp8 mbs1", "ep4 dp2 cp2 pp2 mbs1 zero1", "ep4 dp2 cp4 mbs1 zero2"]
)
def test_experts_over_context_groups_are_no_axes_of_maxtext(words: str) -> None:
    """More experts' groups than replicas: what was left of the replicas for other axes was none,
    and slices were divided by it."""
    one = stored(parse_grid(words), model="mixtral-8x7b", runtime="megatron-core")
    with pytest.raises(ShardwrightError, match="its experts are dealt over replicas"):
        export_plan(one, target="maxtext", allow_lossy=True)
