"""FlagScale's files say what Megatron's arguments say, and of pipelines whose stages differ a mesh
for each run of like ones."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.errors import StrategyError
from shardwright.frameworks.export.place_ranks_and_write_rank_map import TABLE
from shardwright.frameworks.flagscale.write import CONFIG, TRAIN
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.grid_to_plan import chunk_items, grid_placements, grid_shards
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Keep, Stage
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.megatron.test_write import MODELS, drawn, read_back
from tests.frameworks.plans import BATCH, facts_of, legal, read_yaml, stored
from tests.jobs import training_job
from tests.tiers import in_both, numbers

MIXED = "h100-sxm:8+a100-sxm-80gb:16"
KINDS = ("h100-sxm", "a100-sxm-80gb")


def said(
    one: PlanOfProblem, folder: Path, *, allow_lossy: bool = True
) -> tuple[dict[str, str], dict[str, Any]]:
    """Arguments as its runner makes them of the file, and the section of meshes."""
    paths = write_export(export_plan(one, target="flagscale", allow_lossy=allow_lossy), folder)
    assert paths[:-3] == (folder / CONFIG, folder / TRAIN)
    config = read_yaml(paths[0].read_text())
    assert config["defaults"] == [{"train": "plan"}, "_self_"]
    found: dict[str, Any] = read_yaml(paths[1].read_text())
    assert set(found) == {"system", "model", "data"}
    meshes = found["system"].pop("hetero", {})
    assert config["experiment"]["runner"]["rdzv_backend"] == "static"
    words: dict[str, str] = {}
    for key, value in (*found["system"].items(), *found["model"].items()):
        if value is not False:
            text = (
                ""
                if value is True
                else " ".join(map(str, value))
                if isinstance(value, list)
                else str(value)
            )
            words[key.replace("_", "-")] = text
    return words, meshes


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_grids_are_read_back(model: str, tmp_path: Path) -> None:
    compared = 0
    for number in numbers(30, 200):
        grid = drawn(Random(f"{model} {number}"), model)
        if not legal(grid, model):
            continue
        facts = facts_of(grid, model)
        grid = canonical(grid, facts=facts)
        words, meshes = said(stored(grid, model=model, runtime="megatron-core"), tmp_path)
        again = replace(read_back(words, model), dp=grid.dp)
        assert again == replace(
            grid, order=again.order if 1 in (grid.dp, grid.pp) else grid.order
        ), print_grid(grid)
        assert not meshes
        compared += 1
    assert compared > 10


def staged(
    stages: Sequence[tuple[Grid, int]],
    *,
    model: str = "llama-2-13b",
    lanes: int = 1,
    recomputed: Sequence[int] = (),
) -> PlanOfProblem:
    """A plan of like lanes whose stages are these grids, with so many layers each, one stage behind
    the other.

    Args:
        recomputed: layers of each stage that run again in backward; none named = no layer does.
    """
    known, first = load_model(model), stages[0][0]
    items = chunk_items(known, chunks=tuple(layers for _, layers in stages))
    bases, at = [], 0
    for grid, _ in stages:
        bases.append(at)
        at += grid.devices * lanes
    names = tuple("abcdefgh"[:lanes])
    made = tuple(
        Lane(
            name=name,
            samples=BATCH // lanes,
            microbatches=BATCH // lanes // (first.dp * first.microbatch),
            stages=tuple(
                Stage(
                    items=item,
                    base=base + number * grid.devices,
                    placements=grid_placements(grid, experts=False),
                    keeps=(
                        Keep(
                            blocks=(0, again - 1),
                            how=ActivationPolicy.RECOMPUTE,
                            operators=("full",),
                        ),
                    )
                    if again
                    else (),
                )
                for (grid, _), item, base, again in zip(
                    stages, items, bases, recomputed or [0] * len(stages), strict=True
                )
            ),
        )
        for number, name in enumerate(names)
    )
    plan = Plan(
        devices=at,
        lanes=made,
        orders=tuple(NamedOrder(schedule="1f1b", lanes=(name,)) for name in names),
        shards=grid_shards(first, experts=False),
    )
    problem = Problem(
        model=known,
        cluster=parse_cluster(MIXED),
        job=training_job(seq_len=2048, global_batch=BATCH),
        runtime=load_runtime("megatron-core"),
    )
    return PlanOfProblem(
        name="mixed", problem=problem, plan=plan, grid=None, cluster=MIXED, step_time_s=1.0
    )


def validated(
    words: dict[str, str], meshes: dict[str, Any], *, layers: int
) -> list[tuple[int, ...]]:
    """Meshes, by the rules of its `pre_validate_args`."""
    flat = meshes["hetero_process_meshes"]
    assert len(flat) % 5 == 0
    found = [tuple(flat[at : at + 5]) for at in range(0, len(flat), 5)]
    assert all(found[0][3] * int(words["micro-batch-size"]) % dp == 0 for _, _, _, dp, _ in found)
    assert len({cp for _, cp, _, _, _ in found}) == 1
    assert (
        int(words["pipeline-model-parallel-size"])
        == sum(pp for *_, pp in found)
        == len(meshes["hetero_pipeline_layer_split"])
    )
    assert sum(meshes["hetero_pipeline_layer_split"]) == layers
    assert len(meshes["hetero_device_types"]) == len(found)
    assert meshes["hetero_current_device_type"] in meshes["hetero_device_types"]
    assert meshes["enable_hetero"]
    assert not meshes["standalone_embedding_stage"]
    assert "num-virtual-stages-per-pipeline-rank" not in words
    return found


def test_stages_of_unlike_degrees_are_meshes(tmp_path: Path) -> None:
    fast, slow = Grid(tp=4, sp=True, dp=2, zero=1), Grid(tp=8, sp=True, dp=2, zero=1)
    words, meshes = said(staged([(fast, 33), (slow, 7)]), tmp_path)
    assert validated(words, meshes, layers=40) == [(4, 1, 1, 2, 1), (8, 1, 1, 2, 1)]
    assert meshes["hetero_pipeline_layer_split"] == [33, 7]
    rows = list(csv.DictReader((tmp_path / TABLE).read_text().splitlines()))
    assert [(row["device"], row["pp"], row["tp"], row["dp"]) for row in rows] == [
        *((KINDS[0], "0", str(rank % 4), str(rank // 4)) for rank in range(8)),
        *((KINDS[1], "1", str(rank % 8), str(rank // 8)) for rank in range(16)),
    ]
    assert {(row["pp"], row["layers"]) for row in rows} == {
        ("0", "embed + 0-32"),
        ("1", "33-39 + head"),
    }
    assert meshes["hetero_device_types"] == list(KINDS)
    assert {"sequence-parallel", "use-distributed-optimizer"} <= set(words)


def test_stages_recompute_as_many_layers_as_each_needs(tmp_path: Path) -> None:
    fast, slow = Grid(tp=4, sp=True, dp=2, zero=1), Grid(tp=8, sp=True, dp=2, zero=1)
    one = staged([(fast, 33), (slow, 7)], recomputed=(20, 0))
    write_export(export_plan(one, target="flagscale", allow_lossy=True), tmp_path)
    system = read_yaml((tmp_path / TRAIN).read_text())["system"]
    assert (system["recompute_granularity"], system["recompute_method"]) == ("full", "block")
    # Of each stage: how many are so, microbatches, what holds in them.
    assert system["recompute_granularity_per_stage_micro_batch"] == [[1, 32, 1], [1, 32, 0]]
    assert system["recompute_num_layers_per_stage_micro_batch"] == [[1, 32, 20], [1, 32, 1]]
    words, _ = said(staged([(fast, 33), (slow, 7)], recomputed=(33, 7)), tmp_path)
    assert words["recompute-method"] == "uniform"
    assert not any("per-stage" in name for name in words)


@in_both
def test_random_meshes_are_read_back(tmp_path: Path) -> None:
    layers = num_layers(load_model("llama-2-13b"))
    for number in numbers(30, 200):
        random = Random(f"meshes {number}")
        lanes, stages = random.choice((1, 1, 2)), []
        dp = random.choice((1, 2))
        for kind, room in ((0, 8), (1, 16)):
            tp = random.choice([n for n in (1, 2, 4) if n * dp * lanes <= room])
            most = room // (tp * dp * lanes)
            # The first kind is full: what works of it is what its ranks are.
            count = most if kind == 0 else random.randint(1, most)
            stages += [(kind, Grid(tp=tp, sp=tp > 1, dp=dp, zero=1))] * count
        cuts = [0, *sorted(random.sample(range(1, layers), len(stages) - 1)), layers]
        counts = [b - a for a, b in pairwise(cuts)]
        one = staged(
            [(grid, count) for (_, grid), count in zip(stages, counts, strict=True)], lanes=lanes
        )
        words, meshes = said(one, tmp_path)
        read = [mesh for mesh in validated(words, meshes, layers=layers) for _ in range(mesh[4])]
        assert [(tp, dp_) for tp, _, _, dp_, _ in read] == [
            (grid.tp, dp * lanes) for _, grid in stages
        ]
        types = [
            kind
            for kind, pp in zip(
                meshes["hetero_device_types"], meshes["hetero_process_meshes"][4::5], strict=True
            )
            for _ in range(pp)
        ]
        assert types == [KINDS[kind] for kind, _ in stages]
        assert meshes["hetero_pipeline_layer_split"] == counts
        assert int(words["micro-batch-size"]) == 1


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        (
            [
                (Grid(tp=4, sp=True, dp=2, zero=1), 20),
                (Grid(tp=4, sp=True, dp=2, cp=2, zero=1), 20),
            ],
            "stages of cp 1 and 2",
        ),
        (
            [(Grid(tp=8, sp=True, zero=1), 20), (Grid(tp=4, dp=2, zero=1), 20)],
            "microbatches of 1 samples over 1 and 2 replicas",
        ),
        (
            [(Grid(tp=4, sp=True, dp=1, zero=1), 20), (Grid(tp=8, sp=True, dp=1, zero=1), 20)],
            "several kinds",
        ),
        ([(Grid(dp=16, zero=1), 40)], "several kinds"),
    ],
)
def test_meshes_that_it_has_not_are_named(stages: list[tuple[Grid, int]], what: str) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.refused\]") as error:
        export_plan(staged(stages), target="flagscale", allow_lossy=True)
    assert what in str(error.value)


def test_other_targets_refuse_stages_that_differ() -> None:
    one = staged([(Grid(tp=4, sp=True, dp=2, zero=1), 33), (Grid(tp=8, sp=True, dp=2, zero=1), 7)])
    with pytest.raises(
        StrategyError, match=r"no grid says this plan, and megatron runs grids \[export\.grid\]"
    ):
        export_plan(one, target="megatron", allow_lossy=True)


@pytest.mark.parametrize(
    ("text", "model", "what"),
    [
        ("pp4 dp2 zero1 schedule=zb-h1", "llama-3.1-8b", "the schedule zb-h1"),
        ("pp2 dp4 zero3", "llama-3.1-8b", "zero3 with pp 2"),
        ("dp8 zero1", "gpt-oss-20b", "sinks"),
    ],
)
def test_what_it_cannot_say_is_named(text: str, model: str, what: str) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.(refused|lossy)\]") as error:
        export_plan(
            stored(parse_grid(text), model=model, runtime="megatron-core"), target="flagscale"
        )
    assert what in str(error.value)
