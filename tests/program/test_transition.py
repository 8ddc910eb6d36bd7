"""Transitions of layouts: the cases of the zoo by hand, and steps that are run on integers, forward
and backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.program.layout.tensor_layout import (
    Box,
    Holding,
    Indices,
    Layout,
    common_indices,
    difference,
    indices_without,
    intersection,
    joined_intervals,
    ticks,
    volume,
)
from shardwright.program.transition.cheapest_layout_transition import (
    Transition,
    candidate_acts,
    minimum_received,
    transition,
)
from shardwright.program.transition.pieces_by_holding_and_wanting_devices import (
    PlacedPiece,
    components,
)
from shardwright.program.transition.transition_steps_and_symbolic_proof import (
    Act,
    StepKind,
    TransitionStep,
    delivers_wanted_values,
)
from tests.program.flows import flows
from tests.tiers import examples

ROWS, COLS = 48, 48
X = ROWS * COLS
ALL_ROWS, ALL_COLS = ((0, ROWS),), ((0, COLS),)
CELLS = list(product(range(ROWS), range(COLS)))


def share(size: int, weights: Sequence[int], i: int) -> Indices:
    total = sum(weights)
    low, high = (size * sum(weights[:end]) // total for end in (i, i + 1))
    return ((low, high),)


def whole(devices: Iterable[int]) -> Layout:
    return tuple(Holding(device=device, box=(ALL_ROWS, ALL_COLS)) for device in devices)


def by_rows(devices: Sequence[int], weights: Sequence[int] = ()) -> Layout:
    weights = weights or (1,) * len(devices)
    return tuple(
        Holding(device=d, box=(share(ROWS, weights, i), ALL_COLS)) for i, d in enumerate(devices)
    )


def by_cols(devices: Sequence[int]) -> Layout:
    return tuple(
        Holding(device=d, box=(ALL_ROWS, share(COLS, (1,) * len(devices), i)))
        for i, d in enumerate(devices)
    )


def zigzag(devices: Sequence[int]) -> Layout:
    n = len(devices)
    halves = [share(ROWS, (1,) * 2 * n, i) for i in range(2 * n)]
    return tuple(
        Holding(device=d, box=(joined_intervals(halves[i] + halves[2 * n - 1 - i]), ALL_COLS))
        for i, d in enumerate(devices)
    )


def partial(devices: Sequence[int]) -> Layout:
    return tuple(Holding(device=d, box=(ALL_ROWS, ALL_COLS), part=i) for i, d in enumerate(devices))


def received(found: Transition) -> int:
    return sum(elements for _, elements in found.received)


def kinds(found: Transition) -> list[tuple[StepKind, int, int]]:
    """(kind, groups, devices of a group) of each step; of sends (kind, messages, 2)."""
    return [
        (s.kind, len(s.groups) or len(s.sends), len(s.groups[0]) if s.groups else 2)
        for s in found.steps
    ]


AG, RS, AR, A2A = (
    StepKind.ALL_GATHER,
    StepKind.REDUCE_SCATTER,
    StepKind.ALL_REDUCE,
    StepKind.ALL_TO_ALL,
)
EIGHT = range(8)
TEXTBOOK = {
    "slice": (whole(EIGHT), by_rows(EIGHT), []),
    "same": (by_rows(EIGHT), by_rows(EIGHT), []),
    "all_gather": (by_rows(EIGHT), whole(EIGHT), [(AG, 1, 8)]),
    "uneven all_gather": (by_rows(EIGHT, (8, 1, 1, 1, 2, 1, 1, 1)), whole(EIGHT), [(AG, 1, 8)]),
    "zigzag all_gather": (zigzag(EIGHT), whole(EIGHT), [(AG, 1, 8)]),
    "reduce_scatter": (partial(EIGHT), by_rows(EIGHT), [(RS, 1, 8)]),
    "zigzag reduce_scatter": (partial(EIGHT), zigzag(EIGHT), [(RS, 1, 8)]),
    "all_reduce": (partial(EIGHT), whole(EIGHT), [(AR, 1, 8)]),
    "all_to_all": (by_rows(EIGHT), by_cols(EIGHT), [(A2A, 1, 8)]),
    "uneven all_to_all": (by_rows(EIGHT, (2, 1, 1, 1, 1, 1, 1, 1)), by_cols(EIGHT), [(A2A, 1, 8)]),
    "two by all_to_all": (by_rows([3, 5]), by_cols([3, 5]), [(A2A, 1, 2)]),
    "broadcast": (whole([2]), whole(EIGHT), [(StepKind.BROADCAST, 1, 8)]),
    "scatter": (whole([0]), by_rows(EIGHT), [(StepKind.SCATTER, 1, 8)]),
    "gather": (by_rows(EIGHT), whole([0]), [(StepKind.GATHER, 1, 8)]),
    "reduce": (partial(EIGHT), whole([3]), [(StepKind.REDUCE, 1, 8)]),
    "permute": (by_rows(EIGHT), by_rows([1, 2, 3, 4, 5, 6, 7, 0]), [(StepKind.SEND, 8, 2)]),
}


@pytest.mark.parametrize("name", TEXTBOOK)
def test_a_textbook_pattern_is_one_step_at_the_minimum(name: str) -> None:
    source, wanted, expected = TEXTBOOK[name]
    found = transition(source, wanted)
    assert kinds(found) == expected
    assert received(found) == found.minimum
    assert bool(found.minimum) == bool(expected)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("all_gather", X),
        ("reduce_scatter", X),
        ("all_reduce", X),
        ("all_to_all", X // 8),
        ("broadcast", X),
        ("scatter", X),
        ("gather", X),
    ],
)
def test_elements_are_the_full_buffer_of_a_group(name: str, elements: int) -> None:
    (step,) = transition(*TEXTBOOK[name][:2]).steps
    assert step.elements == (elements,)


def test_replicas_gather_in_parallel_groups_of_one_node_each() -> None:
    """Eight replicas of a row of four, replicas innermost: a group is one holder of each row, in
    one node if nodes have all rows."""
    source = tuple(
        Holding(device=d, box=(share(ROWS, (1,) * 4, d // 2 % 4), ALL_COLS)) for d in range(16)
    )
    found = transition(source, whole(range(16)), islands=equal_units((8,))[0])
    assert kinds(found) == [(AG, 4, 4)]
    assert all(len({device // 8 for device in group}) == 1 for group in found.steps[0].groups)
    assert sorted(device for group in found.steps[0].groups for device in group) == list(range(16))
    assert received(found) == found.minimum == 16 * 3 * X // 4


def test_equal_independent_sets_are_groups_of_one_step() -> None:
    """b128 s8 -> b128 on 1,024 devices: 128 groups of eight."""
    rows = [((i, i + 1),) for i in range(128)]
    source = tuple(
        Holding(device=d, box=(rows[d // 8], share(64, (1,) * 8, d % 8))) for d in range(1024)
    )
    wanted = tuple(Holding(device=d, box=(rows[d // 8], ((0, 64),))) for d in range(1024))
    found = transition(source, wanted)
    assert kinds(found) == [(AG, 128, 8)]
    assert found.steps[0].groups[5] == tuple(range(40, 48))
    assert len({one.component for one in found.placed}) == 1
    assert received(found) == found.minimum == 1024 * 56


def test_unequal_parts_share_a_step() -> None:
    """b[2:1]{s2, .}: the pair gathers, the lone device has what it wants (zoo 14)."""
    pair = tuple(Holding(device=d, box=(((0, 32),), share(COLS, (1, 1), d))) for d in (0, 1))
    wanted = tuple(Holding(device=d, box=(((0, 32),), ALL_COLS)) for d in (0, 1))
    lone = (Holding(device=2, box=(((32, 48),), ALL_COLS)),)
    found = transition(pair + lone, wanted + lone)
    assert [(step.kind, step.groups, step.elements) for step in found.steps] == [
        (AG, ((0, 1),), (2 * X // 3,))
    ]


def test_unequal_groups_of_one_step_have_buffers_of_their_own() -> None:
    """b[2:1]{s2, s2} -> b[2:1]{x2, x2}: two pairs gather at once, one twice as much as the
    other."""
    rows = [share(ROWS, (2, 1), d // 2) for d in range(4)]
    source = tuple(Holding(device=d, box=(rows[d], share(COLS, (1, 1), d % 2))) for d in range(4))
    wanted = tuple(Holding(device=d, box=(rows[d], ALL_COLS)) for d in range(4))
    (step,) = transition(source, wanted).steps
    assert (step.kind, step.groups, step.elements) == (AG, ((0, 1), (2, 3)), (2 * X // 3, X // 3))


def test_four_shards_to_two_replicas_elsewhere() -> None:
    """s4 on {0..3} -> b2 on {4, 5}: eight messages of X/8; so is x4 -> b2, each source sends X/4
    (zoo 5 and 15)."""
    for source in (by_cols(range(4)), whole(range(4))):
        found = transition(source, by_rows([4, 5]), across=True)
        (step,) = found.steps
        assert step.kind is StepKind.SEND
        assert sorted((a, b) for a, b, _ in step.sends) == list(product(range(4), (4, 5)))
        assert {elements for _, _, elements in step.sends} == {X // 8}
        assert received(found) == found.minimum == X


def test_two_shards_to_four_copies_elsewhere_gather_where_they_are_wanted() -> None:
    """b2 -> x4: X crosses, then AG_4(X) on the wanted side: 4X received in all (zoo 5 and 15)."""
    found = transition(by_rows([4, 5]), whole(range(4)), across=True)
    assert kinds(found) == [(StepKind.SEND, 4, 2), (AG, 1, 4)]
    assert sum(elements for _, _, elements in found.steps[0].sends) == X
    assert found.steps[1].groups == ((0, 1, 2, 3),)
    assert received(found) == found.minimum == 4 * X


def test_copies_to_copies_share_the_crossing_out_or_send_whole() -> None:
    """x8 -> x8 of another stage: eight sends of X/8 and AG_8, or eight whole messages where a
    runtime does that (zoo 1)."""
    shared = transition(whole(EIGHT), whole(range(8, 16)), across=True)
    assert kinds(shared) == [(StepKind.SEND, 8, 2), (AG, 1, 8)]
    assert sum(elements for _, _, elements in shared.steps[0].sends) == X
    direct = transition(whole(EIGHT), whole(range(8, 16)), across=True, collectives=False)
    assert [step.sends for step in direct.steps] == [tuple((d, d + 8, X) for d in EIGHT)]
    assert received(shared) == received(direct) == shared.minimum == 8 * X


def test_partial_of_eight_to_two_of_them_and_its_adjoint() -> None:
    """v8 on {0..7} -> s2 on {0, 1}: 7X in all, X from and to the busiest; so is the cotangent's way
    back (zoo 17)."""
    for source, wanted in ((partial(EIGHT), by_rows([0, 1])), (by_rows([0, 1]), whole(EIGHT))):
        found = transition(source, wanted, across=True)
        assert received(found) == found.minimum == 7 * X
        assert max(elements for _, elements in found.received) == X


def test_a_sum_that_is_wanted_elsewhere_is_made_at_its_source() -> None:
    found = transition(partial(range(4)), by_rows([4, 5]), across=True)
    assert kinds(found) == [(RS, 1, 4), (StepKind.SEND, 4, 2)]
    assert received(found) == found.minimum == 4 * X


def test_weighted_halves_to_thirds() -> None:
    """b[2:1]{s2, .} on {0, 1, 2} -> b3 on the same: X/3 moves (zoo 5)."""
    source = (
        *(Holding(device=d, box=(((0, 32),), share(COLS, (1, 1), d))) for d in (0, 1)),
        Holding(device=2, box=(((32, 48),), ALL_COLS)),
    )
    found = transition(source, by_rows(range(3)))
    assert received(found) == found.minimum == X // 3


def test_dealing_zigzag_moves_three_quarters() -> None:
    """s4 -> s4z: 3/4 X; uneven s[3:2:1] -> s2 elsewhere: X (zoo 5)."""
    found = transition(by_rows(range(4)), zigzag(range(4)))
    assert received(found) == found.minimum == 3 * X // 4
    uneven = transition(by_rows(range(3), (3, 2, 1)), by_rows([3, 4]), across=True)
    assert received(uneven) == uneven.minimum == X


def test_more_shards_of_the_batch_from_shards_of_the_sequence() -> None:
    """b2 s8 -> b8 s2 (zoo 25): 7/8 X moves, at most X/16 into a device, all-to-alls inside each
    half."""
    source = tuple(
        Holding(device=d, box=(share(ROWS, (1, 1), d // 8), share(COLS, (1,) * 8, d % 8)))
        for d in range(16)
    )
    wanted = tuple(
        Holding(device=d, box=(share(ROWS, (1,) * 8, d // 2), share(COLS, (1, 1), d % 2)))
        for d in range(16)
    )
    found = transition(source, wanted)
    assert received(found) == found.minimum == 7 * X // 8
    assert max(elements for _, elements in found.received) <= X // 16
    assert len(found.placed) > 1
    for step in found.steps:
        devices = [*step.groups, *((a, b) for a, b, _ in step.sends)]
        assert all(len({device // 8 for device in group}) == 1 for group in devices)


def test_ulysses_moves_seven_sixty_fourths_in_and_out() -> None:
    found = transition(by_rows(EIGHT), by_cols(EIGHT))
    assert {elements for _, elements in found.received} == {7 * X // 64}


def test_nearest_senders_then_balance() -> None:
    """Copies in two nodes of four: each consumer gets from its own node, every holder sends as
    much."""
    found = transition(
        whole([0, 1, 4, 5]), by_rows([2, 3, 6, 7]), across=True, islands=equal_units((4,))[0]
    )
    (step,) = found.steps
    assert all(a // 4 == b // 4 for a, b, _ in step.sends)
    assert {sum(e for a, _, e in step.sends if a == device) for device in (0, 1, 4, 5)} == {X // 4}


def test_wanted_by_nobody_and_held_by_nobody() -> None:
    assert transition(whole([0]), ()).steps == ()
    with pytest.raises(StrategyError, match="no device holds") as caught:
        transition(by_rows(range(4))[:3], whole([0]))
    assert caught.value.rule == "layout.coverage"
    halves = (
        Holding(device=0, box=(ALL_ROWS, ALL_COLS), part="a"),
        *partial([0, 1]),
        Holding(device=1, box=(ALL_ROWS, ALL_COLS), part="a"),
    )
    with pytest.raises(StrategyError) as caught:
        transition(halves, whole([0]))
    assert caught.value.rule == "layout.overlap"


def test_a_wrong_list_of_steps_is_no_proof() -> None:
    (one,) = components(by_rows(range(4)), whole(range(4)))
    (good,) = candidate_acts(one.component)
    assert delivers_wanted_values(one.component, good)
    assert not delivers_wanted_values(one.component, ())
    act = good[0]
    short = Act(step=act.step, flows=act.flows[1:], sent=act.sent, received=act.received)
    assert not delivers_wanted_values(one.component, (short,))
    (summed,) = components(partial(range(4)), whole(range(4)))
    twice = next(acts for acts in candidate_acts(summed.component) if acts[0].step.kind is AR)
    assert not delivers_wanted_values(summed.component, (*twice, *twice))


# Random layouts

SIDE = 6
GRID = list(product(range(SIDE), range(SIDE)))


def indices(random: Random) -> Indices:
    return joined_intervals(
        (i, i + 1) for i in range(SIDE) if random.random() < random.choice((0.3, 0.6, 1.0))
    ) or ((0, SIDE),)


def tree(
    random: Random, devices: list[int], box: Box, *, sums: bool, part: tuple[int, ...] = ()
) -> list[Holding]:
    """A random tree over the devices: splits by rows or columns with any weights, copies, and parts
    of sums."""
    if len(devices) == 1:
        return [Holding(device=devices[0], box=box, part=part or None)]
    cut = random.randint(1, len(devices) - 1)
    sides = devices[:cut], devices[cut:]
    way = random.choice(("copy", "rows", "columns", "sum" if sums else "copy"))
    if way in ("copy", "sum"):
        tags = [part, part] if way == "copy" else [(*part, i) for i in range(2)]
        return [
            h
            for side, tag in zip(sides, tags, strict=True)
            for h in tree(random, side, box, sums=sums, part=tag)
        ]
    dim = int(way == "columns")
    every = [i for low, high in box[dim] for i in range(low, high)]
    if len(every) < 2:
        return [h for side in sides for h in tree(random, side, box, sums=sums, part=part)]
    at = random.randint(1, len(every) - 1)
    halves = every[:at], every[at:]
    if random.random() < 0.3:
        halves = every[::2], every[1::2]
    return [
        h
        for side, half in zip(sides, halves, strict=True)
        for h in tree(
            random,
            side,
            (*box[:dim], joined_intervals((i, i + 1) for i in half), *box[dim + 1 :]),
            sums=sums,
            part=part,
        )
    ]


def cells_of(box: Box) -> list[tuple[int, ...]]:
    return list(product(*([i for low, high in one for i in range(low, high)] for one in box)))


Store = dict[tuple[int, tuple[int, ...]], int]


def linear_steps(
    found: Transition,
) -> list[tuple[PlacedPiece, list[tuple[int, ...]], list[Sequence[object]]]]:
    return [
        (
            one,
            [cell for boxes in one.boxes for box in boxes for cell in cells_of(box)],
            [list(act) for act in acts],
        )
        for one, acts in flows(found)
    ]


def forward(found: Transition, store: Store) -> Store:
    """The store after all steps; a place that no flow writes keeps its value."""
    after = dict(store)
    for one, cells, acts in linear_steps(found):
        for act in acts:
            before = dict(after)
            for flow in act:
                for cell in cells[flow.low : flow.high]:  # type: ignore[attr-defined]
                    total = sum(before.get((one.devices[s], cell), 0) for s in flow.sources)  # type: ignore[attr-defined]
                    for target in flow.targets:  # type: ignore[attr-defined]
                        after[one.devices[target], cell] = total
    return after


def backward(found: Transition, store: Store) -> Store:
    """The transposed steps in reverse order: every target's cotangent goes to all sources, and to
    nothing else."""
    after = dict(store)
    for one, cells, acts in linear_steps(found):
        for act in reversed(acts):
            before = dict(after)
            moved = [(flow, cell) for flow in act for cell in cells[flow.low : flow.high]]  # type: ignore[attr-defined]
            for flow, cell in moved:
                for target in flow.targets:
                    after[one.devices[target], cell] = 0
            for flow, cell in moved:
                total = sum(before.get((one.devices[t], cell), 0) for t in flow.targets)
                for source in flow.sources:
                    after[one.devices[source], cell] = (
                        after.get((one.devices[source], cell), 0) + total
                    )
    return after


def case_of(seed: int) -> tuple[Layout, Layout, dict[str, object], Random]:
    """(source, wanted, keywords of a transition, the generator that made them)."""
    random = Random(seed)
    across = random.random() < 0.5
    devices = list(range(random.randint(1, 9)))
    others = (
        [random.choice((0, 1)) * len(devices) + i for i in range(random.randint(1, 9))]
        if across
        else list(devices)
    )
    random.shuffle(others)
    everything = (((0, SIDE),), ((0, SIDE),))
    source = tree(random, devices, everything, sums=random.random() < 0.5)
    wanted = tree(random, others, everything, sums=False)
    wanted += [
        Holding(device=random.choice(others), box=(indices(random), indices(random)))
    ] * random.randint(0, 1)
    keywords = {
        "across": across,
        "collectives": random.random() < 0.8,
        "islands": random.choice((None, *equal_units((2, 4)))),
    }
    return tuple(source), tuple(wanted), keywords, random


def cases() -> st.SearchStrategy[tuple[Layout, Layout, dict[str, object], Random]]:
    return st.integers(0, 2**32).map(case_of)


def filled(source: Layout, random: Random) -> tuple[Store, Store]:
    """(what the source's devices hold, the value of every cell): random integers, equal where
    holdings are duplicates; where somebody holds full values they are the value, else the sum of
    the distinct parts is.
    """
    parts: dict[tuple[int, ...], dict[object, int]] = {}
    store: Store = {}
    for holding in source:
        for cell in cells_of(holding.box):
            store[holding.device, cell] = parts.setdefault(cell, {}).setdefault(
                holding.part, random.randint(-99, 99)
            )
    return store, {
        (0, cell): own[None] if None in own else sum(own.values()) for cell, own in parts.items()
    }


@examples(40, 1500)
@given(cases())
def test_steps_give_what_is_wanted_and_never_less_than_the_minimum_moves(
    case: tuple[Layout, Layout, dict[str, bool], Random],
) -> None:
    source, wanted, keywords, random = case
    found = transition(source, wanted, **keywords)
    store, value = filled(source, random)
    after = forward(found, store)
    for holding in wanted:
        for cell in cells_of(holding.box):
            assert after[holding.device, cell] == value[0, cell]
    assert received(found) >= found.minimum
    if all(holding.part is None for holding in source):
        assert received(found) == found.minimum


@examples(30, 1000)
@given(cases())
def test_every_candidate_is_right_and_the_choice_reaches_what_any_reaches(
    case: tuple[Layout, Layout, dict[str, bool], Random],
) -> None:
    source, wanted, keywords, _ = case
    for one in components(source, wanted, **keywords):
        for acts in candidate_acts(one.component):
            assert delivers_wanted_values(one.component, acts)
            assert sum(sum(act.received.values()) for act in acts) >= minimum_received(
                one.component
            )
            assert sum(sum(act.sent.values()) for act in acts) == sum(
                sum(act.received.values()) for act in acts
            )
            for act in acts:
                assert all(one.component.may_gather(group) for group in act.step.groups)


@examples(30, 1000)
@given(cases())
def test_the_transpose_is_the_adjoint(case: tuple[Layout, Layout, dict[str, bool], Random]) -> None:
    """<A x, y> = <x, A' y> in integers, x on the source's places, y on the wanted ones."""
    source, wanted, keywords, random = case
    found = transition(source, wanted, **keywords)
    x = {(h.device, cell): random.randint(-9, 9) for h in source for cell in cells_of(h.box)}
    y = {(h.device, cell): random.randint(-9, 9) for h in wanted for cell in cells_of(h.box)}
    after, before = forward(found, x), backward(found, y)
    assert sum(after.get(place, 0) * value for place, value in y.items()) == sum(
        before.get(place, 0) * v for place, v in x.items()
    )


ADJOINT = {
    StepKind.ALL_REDUCE: StepKind.ALL_REDUCE,
    StepKind.ALL_GATHER: StepKind.REDUCE_SCATTER,
    StepKind.REDUCE_SCATTER: StepKind.ALL_GATHER,
    StepKind.ALL_TO_ALL: StepKind.ALL_TO_ALL,
    StepKind.BROADCAST: StepKind.REDUCE,
    StepKind.REDUCE: StepKind.BROADCAST,
    StepKind.SCATTER: StepKind.GATHER,
    StepKind.GATHER: StepKind.SCATTER,
    StepKind.SEND: StepKind.SEND,
}


def transposed(steps: Sequence[TransitionStep]) -> tuple[TransitionStep, ...]:
    """The adjoint of a list of steps: each one's adjoint, in reverse order.

    Source: zoo section 5, rule 8.
    """
    return tuple(
        TransitionStep(
            kind=ADJOINT[step.kind],
            groups=step.groups,
            elements=step.elements,
            sends=tuple(
                sorted((target, source, elements) for source, target, elements in step.sends)
            ),
        )
        for step in reversed(steps)
    )


@pytest.mark.parametrize("name", TEXTBOOK)
def test_transposed_steps_are_the_transition_of_the_cotangents(name: str) -> None:
    """Where forward is one step, the cotangent's own transition takes its transpose: AG <-> RS, A2A
    <-> A2A, broadcast <-> reduce."""
    source, wanted, _ = TEXTBOOK[name]
    found = transition(source, wanted)
    back = transposed(found.steps)
    assert transposed(back) == found.steps
    if name in (
        "all_gather",
        "reduce_scatter",
        "zigzag all_gather",
        "all_to_all",
        "broadcast",
        "reduce",
        "permute",
        "scatter",
        "gather",
    ):
        copied = all(holding.box == (ALL_ROWS, ALL_COLS) for holding in wanted) and len(wanted) > 1
        cotangent = partial([holding.device for holding in wanted]) if copied else wanted
        primal = (
            whole([h.device for h in source]) if any(h.part is not None for h in source) else source
        )
        assert transition(cotangent, primal).steps == back


def test_a_send_is_transposed_by_swapping_its_ends() -> None:
    step = TransitionStep(kind=StepKind.SEND, sends=((0, 4, 5), (1, 4, 3)))
    assert transposed((step,)) == (
        TransitionStep(kind=StepKind.SEND, sends=((4, 0, 5), (4, 1, 3))),
    )


@examples(25, 500)
@given(st.integers(0, 2**32))
def test_boxes_are_sets(seed: int) -> None:
    random = Random(seed)
    a, b = (indices(random), indices(random)), (indices(random), indices(random))
    inside, outside = intersection(a, b), difference(a, b)
    assert set(cells_of(a)) & set(cells_of(b)) == set(cells_of(inside) if inside else ())
    rest = [cell for box in outside for cell in cells_of(box)]
    assert sorted(rest) == sorted(set(cells_of(a)) - set(cells_of(b)))
    assert volume(a) == (volume(inside) if inside else 0) + sum(map(volume, outside))
    assert joined_intervals((*common_indices(a[0], b[0]), *indices_without(a[0], b[0]))) == a[0]
    cut = ticks([a[0], b[0]])
    assert all(
        joined_intervals(i for tick in cut.inside[one] for i in cut.indices[tick]) == one
        for one in (a[0], b[0])
    )
    assert len(cut.indices) <= 3
