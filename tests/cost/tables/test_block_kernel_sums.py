"""What is kept of a block's kernels between tables is, bit for bit, what each row costs by
itself."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest

from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.tables.all_block_costs_by_degrees import _lowered_block, layer_table
from shardwright.cost.tables.block_kernel_sums import distinct_degrees
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.search.grid.members.default_runtime_and_recompute_options import module_ladder
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.search.problems import real_problem

MODELS = (
    ("qwen3-30b-a3b", "megatron-core", "h100-sxm:64"),
    ("qwen3-30b-a3b", "torchtitan", "b200-sxm:64"),
    ("llama-3.1-8b", "megatron-core", "a100-sxm-80gb:64"),
)


def rows_with(*, experts: bool, first: int = 1) -> DegreeRows:
    """Every tp, sp, cp and microbatch of a few, with and without experts of their own, in a random
    order; microbatches from `first` on."""
    grids = [
        Grid(tp=tp, sp=sp, cp=cp, ep=ep, dp=64 // tp // cp, microbatch=size)
        for tp in (1, 2, 4, 16)
        for sp in ((False, True) if tp > 1 else (False,))
        for cp in (1, 2)
        for ep in ((1, 8) if experts and (sp or tp == 1) else (1,))
        for size in (first, 2 * first)
    ]
    random.Random(7).shuffle(grids)
    return rows_of(grids)


def forget() -> None:
    """Nothing is known of any block."""
    _lowered_block.cache_clear()


def assert_same(one: LayerTable, other: LayerTable, rows: slice = slice(None)) -> None:
    for field in fields(LayerTable):
        assert np.array_equal(getattr(one, field.name)[..., rows], getattr(other, field.name)), (
            field.name
        )


@pytest.mark.parametrize(("model", "runtime", "cluster"), MODELS)
def test_tables_of_some_rows_after_others_are_those_of_all_at_once(
    model: str, runtime: str, cluster: str
) -> None:
    problem = real_problem(model, cluster, seq_len=4096, global_batch=64, runtime=runtime)
    rows, ladder = rows_with(experts="a3b" in model), module_ladder(problem)
    forget()
    whole = layer_table(problem, rows, modules=ladder)
    forget()
    for start, stop in ((0, 5), (3, 11), (0, len(rows)), (11, 12)):
        some = layer_table(problem, rows.take(np.arange(start, stop)), modules=ladder)
        for number in range(len(ladder)):
            here = slice(number * len(rows) + start, number * len(rows) + stop)
            for field in fields(LayerTable):
                mine = getattr(some, field.name)[
                    ..., number * (stop - start) : (number + 1) * (stop - start)
                ]
                assert np.array_equal(getattr(whole, field.name)[..., here], mine), (
                    field.name,
                    start,
                    stop,
                    number,
                )


def test_degrees_too_large_for_a_code_are_priced_all_the_same() -> None:
    problem = real_problem("llama-3.1-8b", "h100-sxm:64", seq_len=4096, global_batch=64)
    large, small = rows_with(experts=False, first=1024), rows_with(experts=False)
    assert distinct_degrees(large).codes is None
    assert distinct_degrees(small).codes is not None
    once = layer_table(problem, large)
    forget()
    assert_same(once, layer_table(problem, large))
    both = DegreeRows(
        columns={
            name: np.concatenate([column, large[name]]) for name, column in small.columns.items()
        }
    )
    assert_same(layer_table(problem, both), layer_table(problem, small), slice(len(small)))


def test_what_one_cluster_and_batch_know_serves_another() -> None:
    small, large = (
        real_problem("qwen3-30b-a3b", f"h100-sxm:{n}", seq_len=4096, global_batch=n)
        for n in (64, 512)
    )
    rows = rows_with(experts=True)
    forget()
    alone = layer_table(large, rows)
    forget()
    layer_table(small, rows)
    known = _lowered_block.cache_info().currsize
    assert_same(layer_table(large, rows), alone)
    assert _lowered_block.cache_info().currsize == known
