"""The stage bounds of one cut under 1F1B: never above its longest path, and near it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import (
    facts_of as kernel_facts,
)
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.joint.joint_plan_and_step_costs import JointPlan, plan_of_cut
from shardwright.search.joint.joint_space import (
    PipelineShape,
    ShapedSpace,
    joint_space,
    shaped_space,
)
from shardwright.search.joint.label_dynamic_program_inputs import (
    has_equal_layers,
    label_pipeline_of,
    splits_of,
)
from shardwright.search.joint.model_as_chain_of_one_layer_positions import chain_of
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import (
    border_of,
    decode_choice,
    fill_cells,
)
from shardwright.search.joint.pipeline_bound_label_kernels import LABELS, reach, ways_on
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import Cells, Pipeline
from shardwright.search.joint.score_joint_plan import path_score
from tests.search.problems import Case, facts_of, real_problem, small_case
from tests.tiers import in_both, many, random_of, seeds

HIGH = 1e6
ROUNDING = 1 + 1e-9


def only(cells: Cells, chosen: list[tuple[int, int, int]]) -> Cells:
    """The cells with one option of each rank left: first position, positions but one, option."""
    code = np.full_like(cells.code, -1)
    for k, place in enumerate(chosen):
        code[k, *place] = cells.code[k, *place]
    return cells._replace(code=code)


def least_seconds(cells: Cells, pipe: Pipeline, border: float) -> float:
    """The least limit (to 1e-9) by which some cut ends."""
    shape = cells.code.shape[0] + 1, cells.code.shape[1] + 1
    label, rest = np.empty((*shape, LABELS, 2)), np.empty(shape)
    back = np.zeros((*shape, LABELS), dtype=np.int64)
    ways_on(cells, rest)
    low, high = 0.0, HIGH
    while high > low * (1 + 1e-9) + 1e-15:
        middle = (low + min(high, 2 * low + 1e-6)) / 2
        if reach(cells, pipe, border, rest, middle, label, back) == np.inf:
            low = middle
        else:
            high = middle
    return low


def drawn_cut(cells: Cells, generator: Random, length: int) -> list[tuple[int, int, int]] | None:
    """A cut near the even one, with any option of each rank that fits; None if a rank has none."""
    ranks = cells.code.shape[0]
    even = [length * k // ranks for k in range(1, ranks)]
    inner = sorted(min(max(at + generator.choice((-1, 0, 0, 1)), 1), length - 1) for at in even)
    bounds, chosen = (0, *inner, length), []
    if len(set(bounds)) < ranks + 1:
        return None
    for k in range(ranks):
        i, w = bounds[k], bounds[k + 1] - bounds[k] - 1
        options = (
            np.flatnonzero(cells.code[k, i, w] >= 0).tolist() if w < cells.code.shape[2] else []
        )
        if not options:
            return None
        chosen.append((i, w, generator.choice(options)))
    return chosen


def ratios_of(case: Case, generator: Random, *, pipelines: int) -> list[float]:
    """Bound over longest path of a cut of some pipelines with one chunk a rank."""
    problem, capacity = case.problem, smallest_memory_bytes(case.problem.cluster)
    shaped = shaped_space(problem, joint_space(case.space), case.facts)
    if shaped is None:
        return []
    single = [one for one in shaped.pipelines if one.chunks == 1]
    facts, ratios = kernel_facts(problem, devices=case.space.devices, capacity=capacity), []
    chain = chain_of(problem.model)
    for pipeline in generator.sample(single, min(pipelines, len(single))):
        splits, pipe = (
            splits_of(problem, shaped, chain, pipeline, facts),
            label_pipeline_of(problem, shaped, pipeline, facts),
        )
        cells = fill_cells(splits, pipe, limit=HIGH, alike=has_equal_layers(chain))
        chosen = drawn_cut(cells, generator, len(chain))
        if chosen is None:
            continue
        plan = _plan(shaped, pipeline, cells, chosen)
        norm = float(min(shaped.costs.norm[shaped.prepared.mesh_row[list(pipeline.outers)]]))
        bound = (
            (least_seconds(only(cells, chosen), pipe, border_of(splits)) + norm)
            * facts.jitter
            * (1 - 1e-9)
        )
        ratios.append(bound / path_score(problem, shaped, plan).seconds)
    return ratios


def _plan(
    shaped: ShapedSpace, pipeline: PipelineShape, cells: Cells, chosen: list[tuple[int, int, int]]
) -> JointPlan:
    return plan_of_cut(
        shaped,
        pipeline,
        tuple(
            decode_choice(int(cells.code[k, i, w, o]), layers=w + 1)
            for k, (i, w, o) in enumerate(chosen)
        ),
    )


@pytest.mark.parametrize("seed", seeds(4, 200))
def test_a_cut_is_bounded_below_its_longest_path(seed: int) -> None:
    case = small_case(seed)
    space = standard_space(case.problem, case.facts)
    deep = tuple(p for p in space.of("pp") if 1 < int(p) <= case.facts.layers)
    if not deep:
        pytest.skip("no pipelines")
    space = replace(
        space, values=tuple((axis, deep if axis == "pp" else value) for axis, value in space.values)
    )
    ratios = ratios_of(replace(case, space=space), random_of(seed), pipelines=many(30, 60))
    assert all(ratio <= ROUNDING for ratio in ratios)


@in_both
def test_bounds_of_a_model_are_near_the_path(
    record_property: Callable[[str, object], None],
) -> None:
    problem = real_problem("llama-3.1-8b", "h100-sxm:64", seq_len=4096, global_batch=128)
    facts = facts_of(problem)
    case = Case(problem=problem, facts=facts, space=standard_space(problem, facts))
    ratios = ratios_of(case, random_of("near"), pipelines=many(60, 400))
    record_property("mean", float(np.mean(ratios)))
    assert len(ratios) > 20
    assert max(ratios) <= ROUNDING
    assert np.mean(ratios) > 0.98
