"""Tasks of general plans: how many, what waits for what, and what starts together."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest

from shardwright.program import lower_plan_to_tasks
from shardwright.program.lowered_program import Program
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.simulator import simulate_plan as plan_simulator
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.text.grid_notation import parse_grid
from tests.search.problems import real_problem
from tests.simulator.general import run_text, two_stages

LONG = 16384
"""Positions at which the kernels of a small model take longer than their launches."""
Name = tuple[TaskKind, int, int, int, int, int]
"""(kind, class, lane, chunk, microbatch, piece)."""


def graph_of(program: Program) -> nx.DiGraph:
    """Tasks by name, with what waits for them."""
    instances, graph = program.instances, nx.DiGraph()
    names: list[Name] = []
    for template, microbatch in zip(
        instances.template.tolist(), instances.microbatch.tolist(), strict=True
    ):
        t = program.templates[template]
        names.append((TaskKind(t.kind), t.klass, t.lane, t.chunk, microbatch, t.piece))
    assert len(set(names)) == len(names)
    graph.add_nodes_from(names)
    for task, name in enumerate(names):
        reached = instances.successor[
            instances.successor_start[task] : instances.successor_start[task + 1]
        ]
        graph.add_edges_from((name, names[other]) for other in reached.tolist())
    return graph


def waits(graph: nx.DiGraph, later: Name, earlier: Name) -> bool:
    return bool(nx.has_path(graph, earlier, later))


@pytest.mark.parametrize(
    ("order", "closing"), [("1f1b", TaskKind.B), ("gpipe", TaskKind.B), ("zb-h1", TaskKind.W)]
)
def test_numbers_of_tasks(order: str, closing: TaskKind) -> None:
    """Four microbatches on two classes: an action each, the last backward and its reduction in
    pieces, one update."""
    found = two_stages(order=order)
    counts = Counter(
        (program.klass, program.kind)
        for program in (found.program.templates[t] for t in found.program.instances.template)
    )
    for klass in (0, 1):
        pieces = found.costs.pieces[0, klass]
        assert pieces > 1
        assert counts[klass, TaskKind.F] == 4
        assert counts[klass, closing] == 3 + pieces
        assert counts[klass, TaskKind.I] == (4 if closing is TaskKind.W else 0)
        assert counts[klass, TaskKind.REDUCE] == pieces
        assert counts[klass, TaskKind.STEP] == 1
    assert (counts[0, TaskKind.SEND_F], counts[1, TaskKind.SEND_F]) == (4, 0)
    assert (counts[0, TaskKind.SEND_B], counts[1, TaskKind.SEND_B]) == (0, 4)


def test_forward_goes_down_and_backward_comes_up() -> None:
    graph = graph_of(two_stages(order="zb-h1").program)
    for m in range(4):
        sent, back = (TaskKind.SEND_F, 0, 0, 0, m, 0), (TaskKind.SEND_B, 1, 0, 1, m, 0)
        assert graph.has_edge((TaskKind.F, 0, 0, 0, m, 0), sent)
        assert graph.has_edge(sent, (TaskKind.F, 1, 0, 1, m, 0))
        assert graph.has_edge((TaskKind.I, 1, 0, 1, m, 0), back)
        assert graph.has_edge(back, (TaskKind.I, 0, 0, 0, m, 0))
        for chunk in (0, 1):
            place = (chunk, 0, chunk, m, 0)
            assert waits(graph, (TaskKind.I, *place), (TaskKind.F, *place))
            assert waits(graph, (TaskKind.W, *place), (TaskKind.I, *place))
    # A weight gradient holds nobody else up: the input gradient goes on without it.
    assert not waits(graph, (TaskKind.I, 0, 0, 0, 0, 0), (TaskKind.W, 1, 0, 1, 0, 0))


GEMS = """plan gems devices 2
lane down samples 4 in 2
  stages embed+4, 4+head on 0, 1
    all = .
lane up samples 4 in 2
  stages embed+4, 4+head on 1, 0
    all = .
order gems(down, up)
"""


def test_reductions_follow_the_last_backward_of_every_holder() -> None:
    """The first half of the layers is chunk 0 of both lanes, on device 0 and on device 1."""
    found = run_text(GEMS)
    graph, pieces = graph_of(found.program), found.costs.pieces
    for lane, klass in ((0, 0), (1, 1)):
        last = (TaskKind.REDUCE, klass, lane, 0, -1, pieces[lane, 0] - 1)
        for other, holder in ((0, 0), (1, 1)):
            assert waits(graph, last, (TaskKind.B, holder, other, 0, 1, pieces[other, 0] - 1))
    for klass in (0, 1):
        ends = [n for n in graph if n[0] is TaskKind.REDUCE]
        assert all(waits(graph, (TaskKind.STEP, klass, -1, -1, -1, 0), end) for end in ends)


def acts(found: SimulatedPlan, klass: int) -> list[tuple[TaskKind, int, int, int]]:
    """(kind, microbatch, start, finish) of a class's actions."""
    result = []
    for task, template in enumerate(found.program.instances.template.tolist()):
        t = found.program.templates[template]
        if t.klass == klass and t.kind <= TaskKind.R:
            times = int(found.timeline.start[task]), int(found.timeline.finish[task])
            result.append((TaskKind(t.kind), int(found.program.instances.microbatch[task]), *times))
    return result


def test_coupled_classes_start_together_and_take_the_slowest_time() -> None:
    """Three quarters of the heads beside one quarter: they meet in every block."""
    text = (
        "plan uneven devices 2\nlane main samples 8 in 4\n  stages embed+8+head on 0\n    all ="
        " t[3:1]{., .+1}\norder gpipe(main)\n"
    )
    found = run_text(text, seq_len=LONG)
    assert [tuple(c.devices) for c in found.program.classes] == [(0,), (1,)]
    forward = [float(found.costs.step(0, 0, family).forward_s[0]) for family in (0, 1)]
    assert forward[0] > forward[1]
    assert acts(found, 0) == acts(found, 1)
    assert found.costs.seconds(0, 0, 1, 0, TaskKind.F) == max(forward)


def test_replicas_do_not_wait_for_one_another() -> None:
    text = (
        "plan uneven devices 2\nlane main samples 8 in 2\n  stages embed+8+head on 0\n    all ="
        " b[3:1]{., .+1}\norder gpipe(main)\n"
    )
    found = run_text(text, seq_len=LONG)
    more, fewer = acts(found, 0), acts(found, 1)
    assert more[-1][3] > fewer[-1][3]


PAIR = """plan pair devices 1
lane a samples 4 in 1
  stages embed+8+head on 0
    all = .
lane b samples 4 in 1
  stages embed+8+head on 0
    all = .
order table(a, b)
  0: a/0F0 b/0F0 (a/0B0|b/0B0)
"""


def test_last_backwards_in_pieces_run_overlapped() -> None:
    """Both halves of the pair are in pieces; all of them run, and the pair starts when both can."""
    found = run_text(PAIR)
    assert found.costs.pieces[0, 0] > 1
    assert nx.is_directed_acyclic_graph(graph_of(found.program))
    assert found.step_time_s < run_text(
        PAIR.replace("(a/0B0|b/0B0)", "a/0B0 b/0B0")
    ).step_time_s * (1 + 1e-12)


def test_plans_with_equal_tasks_share_them_and_no_others_do() -> None:
    """Placement on devices and recompute leave the tasks as they are, but no other change does.
    Lowered first, each has the same tasks."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:16", seq_len=4096, global_batch=32)
    words = {
        "tp2 sp dp2 pp4 mbs1": 0,
        "tp2 sp dp2 pp4 mbs1 order=tp-pp-dp": 0,
        "tp2 sp dp2 pp4 mbs1 recompute=full": 0,
        "cp2 dp2 pp4 mbs1": 0,
        "tp2 sp dp2 pp4 mbs2": 1,
        "tp2 sp dp2 pp4 mbs1 schedule=gpipe": 2,
        "tp2 sp dp2 pp4 mbs1 first=7 last=7": 3,
        "tp2 sp dp2 pp4 vpp2 mbs1": 4,
        "tp2 sp dp2 pp4 mbs1 zero2": 5,
    }
    grids = [parse_grid(text) for text in words]
    together = [simulate_grid(problem, grid) for grid in grids]
    number_of: dict[int, int] = {}
    shared = [number_of.setdefault(id(one.program.instances), len(number_of)) for one in together]
    assert shared == list(words.values())
    for grid, found in zip(grids, together, strict=True):
        lower_plan_to_tasks._tasks_of.cache_clear()
        plan_simulator._program.cache_clear()
        alone = simulate_grid(problem, grid)
        assert alone.step_time_s == found.step_time_s
        for arrays in ("templates", "instances"):
            first, second = getattr(found.program, arrays), getattr(alone.program, arrays)
            assert first is not second
            for name in type(first).__slots__:
                assert np.array_equal(getattr(first, name), getattr(second, name))
