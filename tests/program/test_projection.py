"""Parts of a tree: by strides as leaf by leaf; families and sum groups of a stage wherever it lies
in whole units of the network."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.device_cuts_in_placement_tree import (
    Cell,
    ClassTree,
    StageCells,
    class_trees,
    leaves,
    regular_levels,
    stage_cells,
)
from shardwright.program.layout.group_devices_by_parts_of_dims import (
    PARTS,
    TOKENS,
    projection,
)
from shardwright.program.stages.device_colour_refinement import StageDevices, refine_families
from shardwright.program.stages.gradient_sum_groups import sum_groups
from shardwright.program.stages.held_parameters import (
    HeldParameters,
    Holdings,
    parameter_sums,
    plan_holdings,
    shares_of,
)
from shardwright.program.stages.stage_segments import StageParts, plan_stages
from shardwright.program.stages.uses_of_each_parameter import parameter_places
from shardwright.strategy.text.parse_plan import parse_plan
from tests.strategy.splits import parse_split
from tests.strategy.zoo_models import dense
from tests.tiers import cases

LENGTH, NODE = 64, 4
DIMS = (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.REPLICATE)
MODEL = dense(layers=2)


def random_tree(draw: random.Random, *, equal: bool) -> str:
    """Two or three cuts of equal parts over at most 24 devices; unequal ones below one of two
    parts."""
    cuts = [
        f"{letter}{draw.choice((2, 2, 3))}" for letter in draw.sample("bstx", draw.choice((2, 3)))
    ]
    if equal:
        return " ".join(cuts)
    size = int(np.prod([int(cut[1:]) for cut in cuts]))
    return f"b[2:1]{{{' '.join(cuts)}, .+{size}}}"


def cells_of(tree: str) -> StageCells:
    trees = tuple(
        ClassTree(klass=klass, split=parse_split(tree), offset=0, exchange=None)
        for klass in OperatorClass
    )
    return stage_cells(trees, samples=24)


@pytest.mark.parametrize("seed", cases(range(60), 30))
def test_parts_by_strides_are_those_of_the_leaves(seed: int) -> None:
    """Number and parts of every device, equal trees (by strides) and unequal ones (which fall
    back)."""
    draw = random.Random(seed)
    equal = seed % 3 > 0
    tree = random_tree(draw, equal=equal)
    cells = cells_of(tree)
    assert (regular_levels(parse_split(tree)) is not None) == equal
    for dims in (TOKENS, PARTS, frozenset(draw.sample(DIMS, 2)), frozenset(DIMS), frozenset[Dim]()):
        found = projection(cells, OperatorClass.MLP, dims)
        told: dict[int, Cell] = {}
        for device, number in zip(found.devices.tolist(), found.number.tolist(), strict=True):
            told[device] = found.cells[number]
        assert len(set(found.cells)) == len(found.cells)
        assert told == {
            d: Cell(ways=tuple(w for w in cell.ways if w[0] in dims))
            for d, cell, _ in leaves(parse_split(tree), 0)
        }


def stages_at(tree: str, base: int, *, unfolded: bool) -> tuple[tuple[StageParts, ...], ...]:
    text = (
        f"plan one devices 96\nlane main samples 24 in 1\n  stages embed+2+head on {base}\n    all"
        f" = {tree}\norder gpipe(main)\n"
    )
    return plan_stages(parse_plan(text), model=MODEL, unfolded=unfolded)


def ground(units: tuple[int, ...] = (NODE, 2 * NODE, 24 * NODE)) -> StageDevices:
    return StageDevices(lengths=lambda lane, segment: (LENGTH,), units=equal_units(units))


def families_at(tree: str, base: int) -> tuple[tuple[int, ...], ...]:
    stages = stages_at(tree, base, unfolded=False)
    summings = parameter_sums(stages, model=MODEL, length=LENGTH, islands=equal_units((NODE,))[0])
    ((stage,),) = refine_families(stages, edges=(), summings=summings, ground=ground())
    return tuple(tuple(d - base for d in family) for family in stage.families)


def held_at(tree: str, base: int) -> Holdings:
    return plan_holdings(
        stages_at(tree, base, unfolded=True),
        model=MODEL,
        length=LENGTH,
        islands=equal_units((NODE,))[0],
    )


def moved(held: Holdings, by: int) -> Holdings:
    def one(h: HeldParameters) -> HeldParameters:
        return replace(h, group=h.group.shifted(by), near=h.near.shifted(by))

    return {
        (*place, device + by): tuple(map(one, items)) for (*place, device), items in held.items()
    }  # type: ignore[misc]


@pytest.mark.parametrize("seed", cases(range(24), 12))
def test_a_stage_moved_by_whole_units_has_the_same_families_and_groups(seed: int) -> None:
    tree = random_tree(random.Random(seed), equal=seed % 3 > 0)
    for base in (0, 1):
        assert (
            families_at(tree, base)
            == families_at(tree, base + 2 * NODE)
            == families_at(tree, base + 4 * NODE)
        )
        assert moved(held_at(tree, base), 2 * NODE) == held_at(tree, base + 2 * NODE)


@pytest.mark.parametrize("seed", cases(range(24), 12))
def test_groups_are_those_of_every_device_on_its_own(seed: int) -> None:
    """What devices hold and with whom they sum it, from each device's own cell and shares."""
    tree = random_tree(random.Random(100 + seed), equal=seed % 3 > 0)
    stages = stages_at(tree, 3, unfolded=True)
    wanted: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}
    for (run, layer, *_), places in parameter_places(stages, model=MODEL).items():
        for found in sum_groups(
            tuple(s for p in places for s in shares_of(p, first_device=0, length=LENGTH)),
            islands=equal_units((NODE,))[0],
        ):
            of = {d: group for group in found.groups for d in group}
            of |= {
                d: tuple(sorted({*of.get(first, (first,)), d}))
                for first, *others in found.copies
                for d in others
            }
            for device, group in of.items() if not layer else ():
                wanted.setdefault((run, device), []).append((found.elements, group))
    segments = stages[0][0].segments
    held = plan_holdings(stages, model=MODEL, length=LENGTH, islands=equal_units((NODE,))[0])
    told = {
        (segments[number].run, device): sorted((h.elements, tuple(h.group)) for h in items)
        for (_, _, number, device), items in held.items()
    }
    assert told == {key: sorted(items) for key, items in wanted.items()}


def test_devices_of_a_family_hold_as_much_and_lie_alike() -> None:
    """Nine devices over nodes of four: the tree's groups lie unequally, and each family is of one
    kind in every set of dims."""
    for seed in range(24):
        tree = random_tree(random.Random(200 + seed), equal=seed % 3 > 0)
        cells = stages_at(tree, 1, unfolded=False)[0][0].segments[0].cells.cells[OperatorClass.MLP]
        for family in families_at(tree, 1):
            seen = set()
            for device in family:
                batch = [
                    d + 1
                    for d, cell in cells.items()
                    if cell.way(Dim.WIDTH) == cells[device].way(Dim.WIDTH)
                ]
                seen.add(
                    tuple(
                        sorted(np.unique(np.array(batch) // NODE, return_counts=True)[1].tolist())
                    )
                )
            assert len(seen) == 1


def test_trees_of_a_plan_keep_their_splits() -> None:
    placements = parse_plan(
        "plan p devices 4\nlane main samples 4 in 1\n  stages embed+2+head on 0\n    all = t4\n   "
        " mlp = b2 t2\norder gpipe(main)\n"
    )
    cells = stage_cells(class_trees(placements.lanes[0].stages[0].placements, 0), samples=4)
    assert projection(cells, OperatorClass.ATTN, PARTS).number.tolist() == [0, 1, 2, 3]
    assert projection(cells, OperatorClass.MLP, PARTS).number.tolist() == [0, 1, 0, 1]
