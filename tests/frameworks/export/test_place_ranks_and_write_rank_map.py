"""A rank map says of every rank where it runs and what it is, as the plan's trees have it, and
hosts are read or refused by line."""

from __future__ import annotations

import csv
import io
import json
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.exports.export_plan import Export, export_plan
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.errors import DataError
from shardwright.frameworks.export.parse_host_file import HostEntry, parse_hosts
from shardwright.frameworks.export.place_ranks_and_write_rank_map import (
    COLUMNS,
    HOSTS,
    RANKS,
    TABLE,
)
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.cluster_network_levels import level_between, network_units
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import AXES, Grid
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.plans import facts_of, legal, stored
from tests.tiers import examples, in_both, numbers

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b")


def text_of(export: Export, name: str) -> str:
    return next(file.text for file in export.beside if file.name == name)


def rows_of(export: Export) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text_of(export, TABLE))))


def parts_of(
    split: Split | None, base: int, parts: tuple[tuple[Dim, int], ...] = ()
) -> dict[int, dict[Dim, list[int]]]:
    """(dim -> its part of each cut, from the outermost) of every device of a tree of equal
    parts."""
    if split is None:
        found: dict[Dim, list[int]] = {}
        for dim, number in parts:
            found.setdefault(dim, []).append(number)
        return {base: found}
    assert isinstance(split.parts, int)
    assert isinstance(split.step, int)
    result: dict[int, dict[Dim, list[int]]] = {}
    for number in range(split.parts):
        result |= parts_of(
            split.children[0], base + number * split.step, (*parts, (split.dim, number))
        )
    return result


def drawn(random: Random, model: str) -> Grid:
    tp, cp, pp = random.choice((1, 2, 4, 8)), random.choice((1, 1, 2, 4)), random.choice((1, 2, 4))
    schedule = random.choice(("1f1b", "interleaved-1f1b")) if pp > 1 else "1f1b"
    inner = random.sample(AXES, len(AXES))
    return Grid(
        tp=tp,
        sp=tp > 1,
        cp=cp,
        ulysses=random.choice([n for n in (1, 2) if cp % n == 0]),
        ep=random.choice((1, 2, 4)) if model != MODELS[0] else 1,
        etp=random.choice((1, 1, 2)) if model != MODELS[0] else 1,
        dp=random.choice((1, 2, 4)),
        pp=pp,
        vpp=2 if schedule == "interleaved-1f1b" else 1,
        zero=random.choice((0, 1)),
        schedule=schedule,
        order=tuple(inner),
    )


def exported(one: PlanOfProblem) -> Export:
    """The rank map does not hang on the target: any that takes the plan's order."""
    from shardwright.frameworks.export.export_plan_shortfall_and_file_types import PlanToExport
    from shardwright.frameworks.export.place_ranks_and_write_rank_map import (
        placement_files,
        placement_of,
    )
    from shardwright.frameworks.registry import TARGETS

    assert one.grid is not None
    given_ = PlanToExport(
        name=one.name,
        cluster=one.cluster,
        problem=one.problem,
        plan=one.plan,
        grid=one.grid,
        table=None,
    )
    files = placement_files(placement_of(given_), plan=one.name, cluster=one.cluster)
    return Export(target=TARGETS.load("megatron"), files=(), beside=files, losses=())


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_coordinates_are_those_of_the_plan_s_trees(model: str) -> None:
    """Of a stage's devices those with the same place on an axis hold the same part of what is cut
    along it, and others another: counted on the trees, cut by cut.
    """
    compared = folded = 0
    for number in numbers(60, 300):
        grid = drawn(Random(f"{model} {number}"), model)
        if not legal(grid, model):
            continue
        grid = canonical(grid, facts=facts_of(grid, model))
        one = stored(grid, model=model)
        rows = rows_of(exported(one))
        assert [int(row["rank"]) for row in rows] == list(range(grid.devices))
        for number_of_chunk, chunk in enumerate(one.plan.lanes[0].stages):
            for placement in chunk.placements:
                experts = placement.select.classes == ("experts",)
                if placement.select.classes and not experts:
                    continue
                axes = (
                    {Dim.EXPERTS: "ep", Dim.FFN: "etp"}
                    if experts
                    else {Dim.BATCH: "dp", Dim.WIDTH: "tp", Dim.SEQUENCE: "cp"}
                )
                parts = parts_of(placement.split, chunk.base)
                assert {int(rows[device]["pp"]) for device in parts} == {number_of_chunk % grid.pp}
                assert len(parts) == grid.devices // grid.pp
                for dim, axis in axes.items():
                    pairs = {
                        (int(rows[device][axis]), tuple(cuts.get(dim, ())))
                        for device, cuts in parts.items()
                    }
                    places, cuts_of = {place for place, _ in pairs}, {cut for _, cut in pairs}
                    assert len(pairs) == len(places) == len(cuts_of) == getattr(grid, axis), (
                        print_grid(grid),
                        axis,
                    )
                folded += experts
        compared += 1
    assert compared > 15
    assert folded or model == MODELS[0]


@pytest.mark.parametrize(
    ("cluster", "sizes"),
    [
        ("h100-sxm:16", [8, 8]),
        ("a100-sxm-80gb:8+h100-nvl:8", [8, 8]),
        ("gb200-nvl72:16", [4, 4, 4, 4]),
        ("t4:8+h100-sxm:8", [4, 4, 8]),
        ("h100-sxm:32", [8, 8]),
    ],
)
def test_ranks_are_node_by_node(cluster: str, sizes: list[int]) -> None:
    """In the order of the cluster's groups; who shares an island of the cost model shares what the
    map says of nodes."""
    one = stored(parse_grid("tp4 sp dp4 zero1"))
    found = parse_cluster(cluster)
    from dataclasses import replace

    one = replace(one, problem=replace(one.problem, cluster=found), cluster=cluster)
    rows = rows_of(exported(one))
    nodes = [int(row["node"]) for row in rows]
    assert nodes == [n for n, size in enumerate(sizes) for _ in range(size)]
    assert [int(row["local_rank"]) for row in rows] == [
        local for size in sizes for local in range(size)
    ]
    units = network_units(found)
    first, second = (
        np.array(side) for side in zip(*[(a, b) for a in range(16) for b in range(a)], strict=True)
    )
    together = level_between(first, second, units) == 0
    kinds = [row["device"] for row in rows]
    for a, b, island in zip(first.tolist(), second.tolist(), together.tolist(), strict=True):
        if (
            nodes[a] == nodes[b]
            and found.groups[0].kind.island >= found.groups[0].kind.num_devices
            and "nvl:" not in cluster
        ):
            assert island, "a node is inside an island"
        if island:
            assert kinds[a] == kinds[b]


def test_the_files_of_a_plan() -> None:
    export = export_plan(
        stored(
            parse_grid("tp2 sp pp4 dp2 vpp2 zero1 schedule=interleaved-1f1b"),
            runtime="megatron-core",
        ),
        target="megatron",
    )
    document = json.loads(text_of(export, RANKS))
    rows = rows_of(export)
    assert document["columns"] == list(COLUMNS)
    assert [[int(row[name]) for name in COLUMNS] for row in rows] == document["ranks"]
    assert [node["ranks"] for node in document["nodes"]] == [8, 8]
    assert document["layers"] == [
        "embed + 0-3; 16-19",
        "4-7; 20-23",
        "8-11; 24-27",
        "12-15; 28-31 + head",
    ]
    assert [row["layers"] for row in rows] == [document["layers"][int(row["pp"])] for row in rows]
    assert text_of(export, HOSTS) == "node0 slots=8\nnode1 slots=8\n"


def test_another_order_of_the_target_is_another_map() -> None:
    """Where torchtitan numbers ranks in its own order, the map has its coordinates."""
    grid = parse_grid("tp2 sp dp4 zero3 order=dp-tp-cp-ep-pp")
    rows = rows_of(export_plan(stored(grid), target="torchtitan", allow_lossy=True))
    assert [int(row["tp"]) for row in rows] == [0, 1] * 4
    assert [int(row["dp"]) for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_hosts_are_the_nodes() -> None:
    one = stored(parse_grid("tp2 sp dp8 zero3"))
    export = export_plan(
        one, target="torchtitan", hosts=parse_hosts("b-2 slots=8 # first\n\na.1\n", name="hosts")
    )
    assert text_of(export, HOSTS) == "b-2 slots=8\na.1 slots=8\n"
    assert {(row["node"], row["host"]) for row in rows_of(export)} == {("0", "b-2"), ("1", "a.1")}
    with pytest.raises(DataError, match="1 hosts for a plan on 2 nodes"):
        export_plan(one, target="torchtitan", hosts=(HostEntry(name="a"),))
    with pytest.raises(DataError, match="3 hosts for a plan on 2 nodes"):
        export_plan(one, target="torchtitan", hosts=tuple(HostEntry(name=name) for name in "abc"))
    with pytest.raises(DataError, match="host b has 4 slots for 8 ranks"):
        export_plan(
            one, target="torchtitan", hosts=(HostEntry(name="a"), HostEntry(name="b", slots=4))
        )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "hosts names no host"),
        ("# none\n", "hosts names no host"),
        ("a b", "line 1 'a b' is no host"),
        ("a\n-b\n", "line 2 '-b' is no host"),
        ("a;rm", "line 1 'a;rm' is no host"),
        ("a slots=0", "is no host"),
        ("a slots=8 max_slots=8", "is no host"),
        ("a$(id)", "is no host"),
        ("a\na", "line 2: a is there twice"),
    ],
)
def test_what_is_no_host_is_named(text: str, says: str) -> None:
    with pytest.raises(DataError) as error:
        parse_hosts(text, name="hosts")
    assert says in str(error.value)


@examples(25, 500)
@given(text=st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_hosts(text, name="hosts")
    except DataError:
        return
    assert all(host.name.isascii() and not set(host.name) & set(" '\"$;\\`\n") for host in found)
