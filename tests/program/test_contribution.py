"""Groups of a gradient's sum: the cases of the zoo by hand, and random plans whose sums count every
cell once on every holder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.program.layout.tensor_layout import Box, Indices, joined_intervals
from shardwright.program.stages.gradient_sum_groups import GradientShare, SumGroup, Work, sum_groups
from tests.tiers import examples

ROWS, SAMPLES, POSITIONS = 64, 96, 16
ALL = ((0, ROWS),)
TOKENS: Box = (((0, SAMPLES),), ((0, POSITIONS),))


def part(size: int, parts: int, i: int) -> Indices:
    return ((size * i // parts, size * (i + 1) // parts),)


def work(b: tuple[int, int] = (1, 0), s: tuple[int, int] = (1, 0), *, use: str = "main") -> Work:
    """Cells of part b[1] of b[0] of the batch and s[1] of s[0] of the sequence."""
    return ((use, (part(SAMPLES, *b), part(POSITIONS, *s))),)


def share(device: int, t: tuple[int, int], *works: Work) -> GradientShare:
    return GradientShare(
        device=device, need=(part(ROWS, *t),), work=tuple(entry for one in works for entry in one)
    )


def summary(groups: Sequence[SumGroup]) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
    assert not any(group.copies for group in groups)
    return [(group.elements, group.groups) for group in groups]


WHOLE: Work = (("main", TOKENS),)


def test_tensor_and_sequence_parallel_replicas() -> None:
    """b2 t8 with stream b2 s8 (zoo 2): each eighth of a weight over {i, i + 8}, norms over all
    sixteen."""
    weights = [share(d, (8, d % 8), work((2, d // 8))) for d in range(16)]
    assert summary(sum_groups(tuple(weights), total=WHOLE)) == [
        (ROWS // 8, ((i, i + 8),)) for i in range(8)
    ]
    norms = [share(d, (1, 0), work((2, d // 8), (8, d % 8))) for d in range(16)]
    assert summary(sum_groups(tuple(norms), total=WHOLE)) == [(ROWS, (tuple(range(16)),))]


def test_norms_without_sequence_parallelism_are_duplicates() -> None:
    """b2@32 x8 (zoo 1): eight parallel pairs, no sum over the eight."""
    norms = [share(32 * i + j, (1, 0), work((2, i))) for i in range(2) for j in range(8)]
    assert summary(sum_groups(tuple(norms), total=WHOLE)) == [
        (ROWS, tuple((j, 32 + j) for j in range(8)))
    ]


def test_context_parallel_members_join() -> None:
    """b2 s4z t2 (zoo 3): (8, 1/2, evens) and (8, 1/2, odds); norms 16."""

    def zigzag(i: int, j: int) -> Work:
        halves = joined_intervals(part(POSITIONS, 8, j) + part(POSITIONS, 8, 7 - j))
        return (("main", (part(SAMPLES, 2, i), halves)),)

    devices = list(product(range(2), range(4), range(2)))
    weights = [share(8 * i + 2 * j + k, (2, k), zigzag(i, j)) for i, j, k in devices]
    assert summary(sum_groups(tuple(weights), total=WHOLE)) == [
        (ROWS // 2, (tuple(range(k, 16, 2)),)) for k in range(2)
    ]


def test_experts_over_folded_axes() -> None:
    """experts b4 e4 f2 on 32 (zoo 5): groups of the four that hold the same eighth,
    {0, 8, 16, 24}."""
    shares = [share(d, (8, d % 8), work((4, d // 8))) for d in range(32)]
    found = summary(sum_groups(tuple(shares), total=WHOLE))
    assert found == [(ROWS // 8, ((i, i + 8, i + 16, i + 24),)) for i in range(8)]


def test_two_lanes_share_a_stage() -> None:
    """Chimera and DualPipe (zoo 11, 12): {i, n - 1 - i}, whatever the lane; without both lanes the
    step is not covered."""
    total = (*work((2, 0), use="down"), *work((2, 1), use="up"))
    for n in (4, 8):
        for i in range(n // 2):
            pair = (
                share(i, (1, 0), work((2, 0), use="down")),
                share(n - 1 - i, (1, 0), work((2, 1), use="up")),
            )
            assert summary(sum_groups(pair, total=total)) == [(ROWS, ((i, n - 1 - i),))]
            with pytest.raises(StrategyError) as caught:
                sum_groups(pair[:1], total=total, path="stage 0")
            assert caught.value.rule == "grad.coverage"
            assert str(caught.value).startswith("stage 0: ")


def test_a_stage_that_is_not_a_product() -> None:
    """b[2:1]{t2, .} (zoo 14): weights {0, 2} and {1, 2}, half each; norms {0, 1, 2}."""
    two_thirds, third = ((0, 64),), ((64, 96),)
    sequence = ((0, POSITIONS),)
    weights = (
        *(share(d, (2, d), (("main", (two_thirds, sequence)),)) for d in range(2)),
        share(2, (1, 0), (("main", (third, sequence)),)),
    )
    assert summary(sum_groups(weights, total=WHOLE)) == [
        (ROWS // 2, ((0, 2),)),
        (ROWS // 2, ((1, 2),)),
    ]
    norms = (
        *(share(d, (1, 0), (("main", (two_thirds, part(POSITIONS, 2, d))),)) for d in range(2)),
        share(2, (1, 0), (("main", (third, sequence)),)),
    )
    assert summary(sum_groups(norms, total=WHOLE)) == [(ROWS, ((0, 1, 2),))]


def test_stages_of_different_plans() -> None:
    """tp4 on A -> dp2 on B (zoo 15): stage 0 has nothing to sum, stage 1 {4, 5}."""
    first = [share(d, (4, d), WHOLE) for d in range(4)]
    assert summary(sum_groups(tuple(first), total=WHOLE)) == [
        (ROWS // 4, ((d,),)) for d in range(4)
    ]
    second = [share(4 + i, (1, 0), work((2, i))) for i in range(2)]
    assert summary(sum_groups(tuple(second), total=WHOLE)) == [(ROWS, ((4, 5),))]


def test_unequal_replicas() -> None:
    """Lanes of 12, 8 and 4 samples (zoo 16): {0, 4, 6} and {1, 4, 6}; norms {0, 1, 4, 6}; one
    holder a half is not covered."""
    sequence = ((0, POSITIONS),)
    lanes = [
        (("a", (((0, 12),), sequence)),),
        (("b", (((12, 20),), sequence)),),
        (("c", (((20, 24),), sequence)),),
    ]
    total = tuple(entry for lane in lanes for entry in lane)
    for members in ((0, 1, 4), (2, 3, 4), (2, 3, 5)):
        x, y, z = members
        shares = (
            share(x, (2, 0), lanes[0]),
            share(y, (2, 1), lanes[0]),
            share(z, (1, 0), lanes[1]),
            share(6, (1, 0), lanes[2]),
        )
        assert summary(sum_groups(shares, total=total)) == [
            (ROWS // 2, ((x, z, 6),)),
            (ROWS // 2, ((y, z, 6),)),
        ]
    halves = [(("a", (((0, 12),), part(POSITIONS, 2, i))),) for i in range(2)]
    norms = (
        share(0, (1, 0), halves[0]),
        share(1, (1, 0), halves[1]),
        share(4, (1, 0), lanes[1]),
        share(6, (1, 0), lanes[2]),
    )
    assert summary(sum_groups(norms, total=total)) == [(ROWS, ((0, 1, 4, 6),))]


def test_key_heads_under_query_heads() -> None:
    """32 query heads, 4 key heads on t8 (zoo 18): pairs {2i, 2i + 1} hold one key head and sum what
    their query heads give."""
    shares = [
        GradientShare(
            device=d, need=(part(ROWS, 4, d // 2),), work=(("main", (*TOKENS, part(8, 2, d % 2))),)
        )  # of the head's 8 queries
        for d in range(8)
    ]
    total = (("main", (*TOKENS, ((0, 8),))),)
    assert summary(sum_groups(tuple(shares), total=total)) == [
        (ROWS // 4, ((2 * i, 2 * i + 1),)) for i in range(4)
    ]


def test_trees_that_differ_between_layers() -> None:
    """b2 t8 below layer 12, b8 t2 above (zoo 25): (2, 1/8) and (8, 1/2)."""
    low = [share(d, (8, d % 8), work((2, d // 8))) for d in range(16)]
    high = [share(d, (2, d % 2), work((8, d // 2))) for d in range(16)]
    assert [
        (size, len(groups[0])) for size, groups in summary(sum_groups(tuple(low), total=WHOLE))
    ] == [(ROWS // 8, 2)] * 8
    assert [
        (size, len(groups[0])) for size, groups in summary(sum_groups(tuple(high), total=WHOLE))
    ] == [(ROWS // 2, 8)] * 2


def test_uses_of_tied_weights_add_up_where_they_are_computed() -> None:
    """v8 of embedding and head on the same devices (zoo 17): nothing to sum. On two stages: the
    pair."""
    total = (*work(use="embed"), *work(use="head"))
    tied = [share(d, (8, d), work(use=use)) for d in range(8) for use in ("embed", "head")]
    assert summary(sum_groups(tuple(tied), total=total)) == [(ROWS // 8, ((d,),)) for d in range(8)]
    apart = (share(0, (1, 0), work(use="embed")), share(9, (1, 0), work(use="head")))
    assert summary(sum_groups(apart, total=total)) == [(ROWS, ((0, 9),))]


def test_equal_cells_are_equal_however_they_are_written() -> None:
    halves = (*work((2, 0)), *work((2, 1)))
    assert summary(
        sum_groups((share(0, (1, 0), halves), share(1, (1, 0), WHOLE)), total=WHOLE)
    ) == [(ROWS, ((0,), (1,)))]


def test_unequal_numbers_of_duplicates_sum_representatives_and_broadcast() -> None:
    """Three duplicates of one half, one of the other: the member in the other's node sums, and
    tells its duplicates."""
    shares = (*(share(d, (1, 0), work((2, 0))) for d in (0, 1, 9)), share(8, (1, 0), work((2, 1))))
    (group,) = sum_groups(shares, total=WHOLE, islands=equal_units((8,))[0])
    assert (group.groups, group.copies) == (((8, 9),), ((9, 0, 1),))


def test_partners_are_sought_in_one_node() -> None:
    """Duplicates {0, 1, 8} of one half and {2, 9, 10} of the other in nodes of eight; without nodes
    the j-th ones meet."""
    shares = tuple(share(d, (1, 0), work((2, int(d in (2, 9, 10))))) for d in (0, 1, 8, 2, 9, 10))
    assert summary(sum_groups(shares, total=WHOLE, islands=equal_units((8,))[0])) == [
        (ROWS, ((0, 2), (1, 10), (8, 9)))
    ]
    assert summary(sum_groups(shares, total=WHOLE)) == [(ROWS, ((0, 2), (1, 9), (8, 10)))]


def test_partly_overlapping_contributions_are_illegal() -> None:
    shares = (share(0, (1, 0), WHOLE), share(1, (1, 0), work((2, 0))))
    with pytest.raises(StrategyError, match="partly the same") as caught:
        sum_groups(shares)
    assert caught.value.rule == "grad.overlap"


# Random plans

SIDE = 4


def cut(indices: Indices, random: Random) -> list[Indices]:
    every = [i for low, high in indices for i in range(low, high)]
    at = random.randint(1, len(every) - 1)
    halves = (every[::2], every[1::2]) if random.random() < 0.3 else (every[:at], every[at:])
    return [joined_intervals((i, i + 1) for i in half) for half in halves]


def tree(random: Random, devices: list[int], need: Box, cells: Box) -> list[tuple[int, Box, Box]]:
    """A random tree: dims of the parameter (its own cut), samples, positions, or copies. (device,
    need, cells) of each leaf."""
    if len(devices) == 1:
        return [(devices[0], need, cells)]
    at = random.randint(1, len(devices) - 1)
    sides = devices[:at], devices[at:]
    dims = len(need)
    dim = random.randrange(dims + len(cells) + 1)
    boxes = (*need, *cells)
    if dim == len(boxes) or sum(high - low for low, high in boxes[dim]) < 2:
        parts = [boxes, boxes]
    else:
        parts = [(*boxes[:dim], half, *boxes[dim + 1 :]) for half in cut(boxes[dim], random)]
    return [
        leaf
        for side, own in zip(sides, parts, strict=True)
        for leaf in tree(random, side, own[:dims], own[dims:])
    ]


def elements_of(box: Box) -> set[tuple[int, ...]]:
    return set(product(*([i for low, high in one for i in range(low, high)] for one in box)))


@st.composite
def plans(draw: st.DrawFn) -> tuple[tuple[GradientShare, ...], Work, int]:
    """Lanes of their own samples on overlapping devices, each with a tree and one or two uses."""
    random = Random(draw(st.integers(0, 2**32)))
    sequence, parameter = ((0, SIDE),), (((0, SIDE),), ((0, SIDE),))
    shares, total = [], []
    for lane in range(random.randint(1, 3)):
        cells = (((lane * SIDE, lane * SIDE + SIDE),), sequence)
        for use in range(random.randint(1, 2)):
            devices = random.sample(range(8), random.randint(1, 6))
            total.append(((lane, use), cells))
            shares += [
                GradientShare(device=d, need=n, work=(((lane, use), own),))
                for d, n, own in tree(random, devices, parameter, cells)
            ]
    return tuple(shares), tuple(total), random.choice((0, 2, 4))


@examples(50, 2000)
@given(plans())
def test_every_holder_ends_with_every_cell_counted_once(
    case: tuple[tuple[GradientShare, ...], Work, int],
) -> None:
    """Integers stand for terms: each device counts its cells, groups add, copies are told; or two
    contributions truly overlap."""
    shares, total, island = case
    islands = equal_units((island,))[0] if island else None
    number = sum(len(elements_of(box)) for _, box in total)
    counted: dict[tuple[int, tuple[int, ...]], set[object]] = {}
    for share in shares:
        for element in elements_of(share.need):
            cells = {(use, cell) for use, box in share.work for cell in elements_of(box)}
            counted.setdefault((share.device, element), set()).update(cells)
    by_element: dict[tuple[int, ...], list[frozenset[object]]] = {}
    for (_, element), cells in counted.items():
        by_element.setdefault(element, []).append(frozenset(cells))
    overlap = any(
        sum(map(len, set(own))) != len(frozenset().union(*own)) for own in by_element.values()
    )
    if overlap:
        with pytest.raises(StrategyError) as caught:
            sum_groups(shares, total=total, islands=islands)
        assert caught.value.rule == "grad.overlap"
        return
    value = {place: len(cells) for place, cells in counted.items()}
    for found in sum_groups(shares, total=total, islands=islands):
        elements = [element for box in found.boxes for element in elements_of(box)]
        assert len(elements) == found.elements
        for element in elements:
            for group in found.groups:
                result = sum(value[device, element] for device in group)
                value |= {(device, element): result for device in group}
            for root, *others in found.copies:
                value |= {(device, element): value[root, element] for device in others}
    assert set(value.values()) == {number}
