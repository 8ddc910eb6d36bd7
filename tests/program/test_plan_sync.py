"""Who sums which gradients: the groups that the zoo says, and parameters counted by brute force
over index sets."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.layout.device_parts_of_dims import cut_dims, interval, token_box
from shardwright.program.layout.tensor_layout import count
from shardwright.program.stages.held_parameters import HeldParameters, plan_holdings
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.text.parse_plan import parse_plan
from tests.strategies import dense_model
from tests.strategy.zoo_models import dense, sparse
from tests.strategy.zoo_plans import ZooPlan, zoo, zoo_plan


def held_of(case: ZooPlan) -> dict[tuple[int, int, int, int], tuple[HeldParameters, ...]]:
    stages = plan_stages(case.plan, model=case.model, unfolded=True)
    return plan_holdings(
        stages, model=case.model, length=case.seq_len, islands=equal_units((8,))[0]
    )


def groups(case: ZooPlan) -> set[tuple[int, ...]]:
    return {tuple(h.group) for items in held_of(case).values() for h in items if len(h.group) > 1}


def test_survey3_sums_halves_with_the_whole() -> None:
    """Weights {0,2} and {1,2} on halves; norms, which see other tokens everywhere, {0,1,2}."""
    assert groups(zoo_plan("14-survey3")) == {(0, 2), (1, 2), (0, 1, 2)}


def test_survey3_sizes() -> None:
    """Device 2 holds every element once, devices 0 and 1 half of the cut ones and all of the
    others."""
    case = zoo_plan("14-survey3")
    total = Counter[int]()
    for (*_, device), items in held_of(case).items():
        total[device] += sum(h.elements * h.layers for h in items)
    assert total[2] == case.model.num_parameters
    whole = sum(
        h.elements * h.layers
        for (*_, d), items in held_of(case).items()
        if d == 2
        for h in items
        if tuple(h.group) == (0, 1, 2)
    )
    assert total[0] == total[1] == whole + (total[2] - whole) // 2


def test_dualpipe_sums_over_opposite_ranks() -> None:
    assert groups(zoo_plan("11-dualpipe")) == {(i, 7 - i) for i in range(4)}


def test_key_heads_fewer_than_parts_are_summed_by_pairs() -> None:
    """32 query heads, 4 key heads on 8 devices: {2i, 2i+1} sum the keys' and values' weights; norms
    of sequence parallelism all 8."""
    assert groups(zoo_plan("18-gqa-tp8")) == {(0, 1), (2, 3), (4, 5), (6, 7), tuple(range(8))}


def test_unequal_replicas() -> None:
    """Layers 0-11 {0,4,6} {1,4,6}; 12-13 {2,4,6} {3,4,6}; 14-23 {2,5,6} {3,5,6}; norms with both
    halves."""
    halves = {(0, 4, 6), (1, 4, 6), (2, 4, 6), (3, 4, 6), (2, 5, 6), (3, 5, 6)}
    norms = {(0, 1, 4, 6), (2, 3, 4, 6), (2, 3, 5, 6)}
    assert groups(zoo_plan("16-unequal")) == halves | norms


def test_a_segment_whose_layers_differ_counts_each_layer_once() -> None:
    case = zoo_plan("16-unequal")
    total = Counter[int]()
    for (*_, device), items in held_of(case).items():
        total[device] += sum(h.elements * h.layers for h in items)
    assert total[6] == case.model.num_parameters
    assert total[4] + total[5] == case.model.num_parameters


def test_vocabulary_over_all_devices_is_summed_with_nobody() -> None:
    """Each device's part of the tied or untied tables is its own; only norms (sequence parallel
    pairs) are summed."""
    case = zoo_plan("17-vocab-spread")
    for items in held_of(case).values():
        for h in items:
            if h.klass in (ParameterClass.EMBED, ParameterClass.HEAD):
                assert len(h.group) == 1
    assert groups(case) == {(0, 1), (2, 3), (4, 5), (6, 7)}


def test_deepseek_experts_have_four_holders() -> None:
    case = zoo_plan("19-deepseek-v3")
    stages = plan_stages(case.plan, model=case.model)
    found = plan_holdings(
        stages, model=case.model, length=case.seq_len, islands=equal_units((8,))[0]
    )
    sizes = {
        len(h.group) for items in found.values() for h in items if h.klass is ParameterClass.EXPERTS
    }
    assert sizes == {4}
    first = [
        tuple(h.group)
        for (lane, chunk, _, device), items in found.items()
        for h in items
        if h.klass is ParameterClass.EXPERTS and device == 256
    ]
    assert set(first) == {(256, 320, 1664, 1728)}


def test_tied_tables_are_summed_across_stages_and_cut_inside_one() -> None:
    model = dense_model(layers=4, tied=True)
    text = (
        "plan tied devices 4\nlane main samples 8 in 4\n  stages embed+2, 2+head on 0, 2\n    all ="
        " b2\norder 1f1b(main)\n"
    )
    stages = plan_stages(parse_plan(text), model=model, unfolded=True)
    found = plan_holdings(stages, model=model, length=64, islands=equal_units((8,))[0])
    table = [h for items in found.values() for h in items if len(h.group) == 4]
    assert {(tuple(h.group), tuple(h.near)) for h in table} == {
        ((0, 1, 2, 3), (0, 1)),
        ((0, 1, 2, 3), (2, 3)),
    }
    assert len(table) == 4


PLANS = {
    "heads 3:1": (dense(), "all = t[3:1]{., .+1}\n    stream = s2", 2),
    "hidden cuts": (dense(), "all = b2\n    mlp = d2", 2),
    "experts weighted": (sparse(), "all = b4\n    experts = e[3:2:2:1]{., .+1, .+2, .+3}", 4),
    "keys fewer than parts": (dense(heads=32, kv_heads=4), "all = t8\n    stream = s8", 8),
    "batch then heads": (dense(), "all = b[2:1]{t2, .+2}\n    stream = b[2:1]{s2, .+2}", 3),
    "uneven heads": (dense(heads=16, kv_heads=16), "all = t3\n    stream = s3", 3),
}


@pytest.mark.parametrize("name", PLANS)
def test_local_elements_add_up_to_copies(name: str) -> None:
    """Sum over devices of local elements = elements x copies, copies counted over index arrays with
    numpy; the union is everything."""
    model, trees, devices = PLANS[name]
    layers = sum(run.count for run in model.runs if run.name not in ("embed", "head"))
    text = (
        f"plan counted devices {devices}\nlane main samples 12 in 2\n  stages embed+{layers}+head"
        f" on 0\n    {trees}\norder 1f1b(main)\n"
    )
    stages = plan_stages(parse_plan(text), model=model, unfolded=True)
    counted = 0
    for segment in stages[0][0].segments:
        for operator in segment.block.operators:
            for parameter in operator.parameters:
                copies = np.zeros([e.size for e in parameter.extents], dtype=np.int64)
                for cell in segment.cells.cells[operator.klass].values():
                    cuts = cut_dims(cell, operator)
                    box = tuple(slice(*interval(e, operator, cuts)) for e in parameter.extents)
                    copies[box] += 1
                assert copies.min() >= 1, (operator.name, parameter.name)
                counted += int(copies.sum()) * segment.count
    found = plan_holdings(stages, model=model, length=64, islands=equal_units((8,))[0])
    assert sum(h.elements * h.layers for items in found.values() for h in items) == counted


def test_every_gradient_group_of_the_zoo_is_mutual() -> None:
    """A device that sums with others is in the group that they name."""
    for case in zoo():
        if not case.trains or case.plan.devices > 32:
            continue
        found = held_of(case)
        named = {
            (d, h.group) for (*_, d), items in found.items() for h in items if len(h.group) > 1
        }
        for device, group in named:
            assert device in group
            assert all(
                any(d == other and set(g) & set(group) for d, g in named) for other in group
            ), (case.name, device, group)


def test_token_counts_add_up() -> None:
    """Samples x positions over all devices = those of a microbatch x copies, for every class of the
    small plans."""
    for model, trees, devices in PLANS.values():
        layers = sum(run.count for run in model.runs if run.name not in ("embed", "head"))
        text = (
            f"plan counted devices {devices}\nlane main samples 12 in 2\n  stages"
            f" embed+{layers}+head on 0\n    {trees}\norder 1f1b(main)\n"
        )
        for segment in plan_stages(parse_plan(text), model=model)[0][0].segments:
            for klass in (OperatorClass.STREAM, OperatorClass.MLP):
                grid = np.zeros((6, 64), dtype=np.int64)
                tokens = 0
                for cell in segment.cells.cells[klass].values():
                    samples, positions = token_box(cell, samples=6, length=64)
                    tokens += count(samples) * count(positions)
                    for a, b in samples:
                        for c, d in positions:
                            grid[a:b, c:d] += 1
                assert grid.min() >= 1
                assert klass is not OperatorClass.STREAM or int(grid.max()) == 1
                assert int(grid.sum()) == tokens
