"""A tensor from one layout to another, run in process: exact integers, forward, across stages, and
adjoint."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.redistribution.copy_overlap_of_tensor_boxes import overlap
from shardwright.execute.redistribution.device_transition_steps import device_moves
from shardwright.execute.redistribution.run_layout_transition import redistribute
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.program.layout.tensor_layout import Holding, Layout
from shardwright.program.transition.cheapest_layout_transition import best_acts, transition
from shardwright.program.transition.transition_steps_and_symbolic_proof import StepKind
from tests.execute.layouts import (
    EVERYTHING,
    boxed,
    devices_of,
    expected,
    held,
    same,
    two_sided,
    whole_tasks,
)
from tests.program.flows import flows
from tests.program.test_transition import TEXTBOOK, cases, cells_of, tree
from tests.tiers import examples

Case = tuple[Layout, Layout, dict[str, object], Random]


@examples(35, 2000)
@given(cases())
def test_devices_get_the_wanted_boxes_of_the_global_tensor(case: Case) -> None:
    source, wanted, keywords, random = case
    tensors, values = held(source, random)
    before = {device: [one.clone() for one in own] for device, own in tensors.items()}
    found = run_in_process(whole_tasks(tensors, source, wanted, keywords))
    assert same(found, expected(wanted, values))
    assert all(
        torch.equal(a, b) for d in before for a, b in zip(before[d], tensors[d], strict=True)
    ), "inputs stay as they were"


@examples(35, 2000)
@given(cases())
def test_a_senders_side_then_a_receivers_side_is_the_whole(case: Case) -> None:
    """Senders never wait for receivers: all are done before any receiver begins."""
    source, wanted, keywords, random = case
    keywords.pop("across")
    tensors, values = held(source, random)
    tasks = {
        d: two_sided(tensors, source, wanted, keywords, device=d)
        for d in devices_of(source, wanted)
    }
    assert same(run_in_process(tasks), expected(wanted, values))


@examples(25, 1000)
@given(cases())
def test_what_moved_is_what_the_transition_says(case: Case) -> None:
    """Each device's messages are those of the steps; of collectives the elements are the full
    buffers that lowering counts."""
    source, wanted, keywords, random = case
    tensors, _ = held(source, random)
    trace = CommunicationRecord()
    run_in_process(whole_tasks(tensors, source, wanted, keywords), trace=trace)
    messages: dict[tuple[int, int], int] = {}
    collectives: dict[tuple[int, str, tuple[int, ...]], int] = {}
    for one, _ in flows(transition(source, wanted, **keywords)):  # type: ignore[arg-type]
        for act in best_acts(one.component):
            for a, b, elements in act.step.sends:
                pair = one.devices[a], one.devices[b]
                messages[pair] = messages.get(pair, 0) + elements
            for group, elements in zip(act.step.groups, act.step.elements, strict=True):
                for member in group:
                    key = (
                        one.devices[member],
                        act.step.kind.value,
                        tuple(sorted(one.devices[i] for i in group)),
                    )
                    collectives[key] = collectives.get(key, 0) + elements
    sent = {
        (r.device, next(d for d in r.group if d != r.device)): 0
        for r in trace.records
        if r.kind == "send"
    }
    for r in trace.records:
        if r.kind == "send":
            sent[r.device, next(d for d in r.group if d != r.device)] += r.elements
    assert sent == messages
    assert {
        key: n for key, n in trace.elements().items() if key[1] not in ("send", "receive")
    } == collectives
    assert all(r.element == 8 for r in trace.records if r.sent or r.received)


@examples(25, 750)
@given(st.integers(0, 2**32))
def test_backward_is_the_adjoint(seed: int) -> None:
    """<A x, y> = <x, B y>: A brings full values to where they are wanted; B the cotangents, a part
    of a sum from each reader, back."""
    random = Random(seed)
    devices = list(range(random.randint(1, 8)))
    source = tuple(tree(random, devices, EVERYTHING, sums=False))
    wanted = tuple(tree(random, devices, EVERYTHING, sums=False))
    tensors, values = held(source, random)
    made = run_in_process(whole_tasks(tensors, source, wanted, {}))
    cotangent = tuple(Holding(device=h.device, box=h.box, part=i) for i, h in enumerate(wanted))
    readers: dict[int, list[torch.Tensor]] = {}
    for h in cotangent:
        shape = [sum(b - a for a, b in dim) for dim in h.box]
        readers.setdefault(h.device, []).append(
            torch.tensor([float(random.randint(-9, 9)) for _ in cells_of(h.box)])
            .double()
            .reshape(shape)
        )
    back = run_in_process(whole_tasks(readers, cotangent, source, {}))
    left = sum(float((a * b).sum()) for d in made for a, b in zip(made[d], readers[d], strict=True))
    gradient: dict[tuple[int, ...], float] = {}
    own: dict[int, int] = {}
    for h in source:
        tensor = back[h.device][own.setdefault(h.device, 0)].reshape(-1).tolist()
        own[h.device] += 1
        for cell, value in zip(cells_of(h.box), tensor, strict=True):
            assert gradient.setdefault(cell, value) == value, "copies of a gradient are equal"
    assert left == sum(gradient[cell] * value for cell, value in values.items())


@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_patterns(name: str) -> None:
    source, wanted, kinds = TEXTBOOK[name]
    tensors, values = held(source, Random(1))
    trace = CommunicationRecord()
    found = run_in_process(whole_tasks(tensors, source, wanted, {}), trace=trace)
    assert same(found, expected(wanted, values))
    asked = {"send": StepKind.SEND, "receive": StepKind.SEND}
    assert {asked.get(one.kind, one.kind) for one in trace.records} == {
        kind for kind, _, _ in kinds
    }


def test_a_step_that_runs_again_costs_no_geometry() -> None:
    source, wanted, _ = TEXTBOOK["zigzag all_gather"]
    tensors, _ = held(source, Random(2))
    run_in_process(whole_tasks(tensors, source, wanted, {}))
    before = (
        device_moves.cache_info().misses,
        overlap.cache_info().misses + overlap.cache_info().hits,
    )
    run_in_process(whole_tasks(tensors, source, wanted, {}, key="again"))
    assert (
        device_moves.cache_info().misses,
        overlap.cache_info().misses + overlap.cache_info().hits,
    ) == before


def test_nothing_to_do_gives_the_same_tensor() -> None:
    layout = (boxed(0, (0, 2), (0, 4)), boxed(1, (2, 4), (0, 4)))
    tensor = torch.ones(2, 4)
    task = redistribute([tensor], layout, layout, device=0, key="x")
    with pytest.raises(StopIteration) as end:
        next(task)
    assert end.value.value[0] is tensor
    assert (
        device_moves(layout, layout, device=0, across=False, collectives=True, islands=None).steps
        == ()
    )


def test_three_dims_and_zigzag_to_contiguous_and_back() -> None:
    """(samples, positions, elements): positions dealt zigzag over two devices, elements split over
    two more; float32 and exact sums."""
    deal = (((0, 2), (6, 8)), ((2, 6),))
    source = tuple(
        Holding(device=2 * i + j, box=(((0, 2),), deal[i], ((3 * j, 3 * j + 3),)))
        for i, j in product(range(2), range(2))
    )
    wanted = tuple(
        Holding(device=d, box=(((0, 2),), ((2 * d, 2 * d + 2),), ((0, 6),))) for d in range(4)
    )
    x = torch.arange(96, dtype=torch.float32).reshape(2, 8, 6)
    positions = (torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5]))
    shares = {
        2 * i + j: [x[:, positions[i], 3 * j : 3 * j + 3]] for i, j in product(range(2), range(2))
    }
    made = run_in_process(
        {d: redistribute(shares[d], source, wanted, device=d, key="there") for d in range(4)}
    )
    assert all(torch.equal(made[d][0], x[:, 2 * d : 2 * d + 2]) for d in range(4))
    back = run_in_process(
        {d: redistribute(made[d], wanted, source, device=d, key="back") for d in range(4)}
    )
    assert all(torch.equal(back[d][0], shares[d][0]) for d in range(4))


def test_sums_do_not_depend_on_who_asks() -> None:
    """Float sums are in the order of the devices on every member: copies are equal to the last
    bit."""
    source = tuple(Holding(device=d, box=EVERYTHING, part=d) for d in range(5))
    wanted = tuple(Holding(device=d, box=EVERYTHING) for d in range(5))
    noise = torch.randn(5, 6, 6, generator=torch.Generator().manual_seed(3))
    made = run_in_process(
        {d: redistribute([noise[d]], source, wanted, device=d, key="x") for d in range(5)}
    )
    total = noise[0]
    for d in range(1, 5):
        total = total + noise[d]
    assert all(torch.equal(made[d][0], total) for d in range(5))


def test_parts_of_one_device_are_added_where_they_lie() -> None:
    """A device with two parts of a sum, of different boxes, and another with the rest."""
    source = (
        boxed(0, (0, 4), part="a"),
        boxed(0, (2, 6), part="b"),
        boxed(0, (4, 6), part="a"),
        boxed(0, (0, 2), part="b"),
    )
    wanted = (boxed(0, (0, 6)), boxed(1, (1, 5)))
    tensors = [
        torch.tensor(one, dtype=torch.float64)
        for one in ([1, 2, 3, 4], [10, 20, 30, 40], [5, 6], [50, 60])
    ]
    made = run_in_process(
        {
            0: redistribute(tensors, source, wanted, device=0, key="x"),
            1: redistribute([], source, wanted, device=1, key="x", dtype=torch.float64),
        }
    )
    assert made[0][0].tolist() == [51, 62, 13, 24, 35, 46]
    assert made[1][0].tolist() == [62, 13, 24, 35]


def test_a_tensor_of_another_shape_is_refused() -> None:
    layout = (boxed(0, (0, 2), (0, 4)),)
    with pytest.raises(StrategyError) as caught:
        next(redistribute([torch.ones(4, 2)], layout, layout, device=0, key="x"))
    assert caught.value.rule == "execute.shape"
