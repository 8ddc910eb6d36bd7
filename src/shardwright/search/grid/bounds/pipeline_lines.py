"""Lines of the members whose process groups lie unequally, with the rows of the price tables."""

from __future__ import annotations

import numpy as np

from shardwright import arrays
from shardwright.arrays import BoolArray, IntArray
from shardwright.collectives.groups.tier_counts import lie_alike, span_with
from shardwright.cost.degree_columns import Rows
from shardwright.cost.gradients.reduction_seconds import SumSpans
from shardwright.cost.network.grid_groups import Network, axes_of, network_of, tokens_copied
from shardwright.cost.network.pipeline_lines import INSIDE, OF_ULYSSES, Lines, distinct_lines
from shardwright.cost.tables.mesh_table import lies_in_units, mesh_table
from shardwright.cost.tables.problem_tables import layer_table, tensor_groups_inside
from shardwright.cost.tables.row_cache import cached_table
from shardwright.cost.tables.table_columns import LayerTable, MeshTable
from shardwright.hardware.link import Tier
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.grid.members.choice_columns import Columns, distinct, first_of_each
from shardwright.search.grid.members.member_arrays import Members
from shardwright.search.grid.members.memory_choices import legal_shards

_MESH = ("tp", "cp", "dp", "pp", "ep", "etp", "s_tp", "s_cp", "s_dp", "s_pp")
_DEGREES = ("tp", "cp", "ep", "etp")
_CHOICES = ("sp", "ulysses", "gather", "mbs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRows:
    """Rows of the tables for each way in which the groups of an outer's devices lie.

    Args:
        lines: of the meshes whose groups lie unlike.
        of_outer: (outers,) place among them, -1 = all groups lie alike, or not asked for.
        start: (outers + 1,) where the ways of each outer begin in `layer_row` and `mesh_row`, rows
            as `Prepared` has them.
        layer_rows: under one set of modules.
    """

    lines: tuple[Lines, ...]
    of_outer: IntArray
    start: IntArray
    layers: LayerTable
    layer_row: IntArray
    meshes: MeshTable
    mesh_row: IntArray
    layer_rows: int


def line_rows(
    problem: Problem, members: Members, *, some: BoolArray, cut: IntArray
) -> LineRows | None:
    """The lines of the members, with their rows of the tables; None where all groups lie alike.

    Args:
        some: (outers,) whose lines are asked for.
        cut: (outers,) whether the stream is cut over tp, as rows of meshes have it
            (`prepare.rows_of_meshes`).
    """
    outer, mesh = members.outers.columns, members.meshes.columns
    if not some.any():
        return None
    tiers = problem.cluster.tiers()
    degrees = tuple(arrays.distinct(outer["ulysses"][some]).tolist())
    asked = arrays.distinct(outer["mesh"][some])
    unlike = asked[_lie_unlike({name: mesh[name][asked] for name in _MESH}, tiers, degrees)]
    if not len(unlike):
        return None
    units = tuple([tier.num_devices for tier in tiers])
    keys = zip(*(mesh[name][unlike].tolist() for name in _MESH), strict=True)
    groups = tuple(int(s) for s in members.space.of("shard"))
    lines = tuple(
        [
            distinct_lines(
                tuple(zip(_MESH, key, strict=True)), units, ulysses=degrees, shards=groups
            )
            for key in keys
        ]
    )
    place = np.full(len(members.meshes), -1, dtype=np.int64)
    place[unlike] = np.arange(len(unlike))
    of_outer = np.where(some, place[outer["mesh"]], -1)
    ways = np.where(of_outer >= 0, np.array([one.num_ways for one in lines])[of_outer], 0)
    start = np.concatenate([[0], np.cumsum(ways)])
    at = np.repeat(np.arange(len(ways)), ways)
    pairs = _Pairs(lines, at, of_outer[at], np.arange(int(start[-1])) - start[at])
    layers, layer_row = _layers(problem, members, pairs)
    meshes, mesh_row = _meshes(
        problem, members, pairs, cut=cut, shards=np.array(groups, dtype=np.int64)
    )
    return LineRows(
        lines=lines,
        of_outer=of_outer,
        start=start,
        layers=layers,
        layer_row=layer_row,
        meshes=meshes,
        mesh_row=mesh_row,
        layer_rows=len(layers.logits_bytes) // len(members.space.modules),
    )


def _lie_unlike(mesh: Columns, tiers: tuple[Tier, ...], ulysses: tuple[int, ...]) -> BoolArray:
    """(meshes,) True where some groups lie otherwise than others."""
    ones = np.ones_like(mesh["tp"])
    rows = Rows(
        columns={name: mesh[name] for name in _MESH}
        | {"sp": ones, "ulysses": ones, "gather": 0 * ones, "mbs": ones}
    )
    units = tuple([tier.num_devices for tier in tiers])
    alike = lies_in_units(rows, units)
    for axis in ("tp", "etp", "ep", "coset", "edp"):
        alike &= lie_alike(tiers, axes_of(axis, rows))
    # Where cp fills units, Ulysses' runs of it may straddle them.
    for degree in ulysses:
        run = degree * mesh["s_cp"]
        for unit in units[:-1]:
            alike &= (mesh["cp"] % degree != 0) | (unit % run == 0) | (run % unit == 0)
    return ~alike


class _Pairs:
    """Each outer with each way in which its groups lie.

    Args:
        outer: (pairs,) its place. line: its mesh's among the lines. way: in which groups lie.
    """

    def __init__(
        self, lines: tuple[Lines, ...], outer: IntArray, line: IntArray, way: IntArray
    ) -> None:
        first = np.concatenate([[0], np.cumsum([one.num_ways for one in lines])])
        self.lines, self.outer, self.line, self.way = lines, outer, line, way
        self._row = first[line] + way

    def below(self, kind: str, part: IntArray) -> IntArray:
        """(pairs, tiers - 1) of groups by name (`lines.Group`);
        0 where a mesh has no such group.
        """
        tiers = next(iter(self.lines[0].below.values())).shape[1]
        found = np.zeros((len(self.outer), tiers), dtype=np.int64)
        for number in arrays.distinct(part).tolist():
            here = part == number
            every = [
                one.below.get((kind, number), np.zeros((one.num_ways, tiers), dtype=np.int64))
                for one in self.lines
            ]
            found[here] = np.concatenate(every)[self._row[here]]
        return found


def _layers(problem: Problem, members: Members, pairs: _Pairs) -> tuple[LayerTable, IntArray]:
    outer, mesh, at = members.outers.columns, members.meshes.columns, pairs.outer
    columns = {name: mesh[name][outer["mesh"][at]] for name in _DEGREES} | {
        name: outer[name][at] for name in _CHOICES
    }
    for axis in INSIDE:
        lying = pairs.below(axis, columns["ulysses"] if axis in OF_ULYSSES else np.zeros_like(at))
        columns = Rows(columns=columns).where(axis, lying.T).columns
    whole = Rows(columns={name: mesh[name][outer["mesh"][at]] for name in _MESH})
    columns["within"] = tensor_groups_inside(whole, island=problem.cluster.node.island).astype(
        np.int64
    )
    few, row = distinct(columns)
    strides = dict.fromkeys(
        ("dp", "pp", "s_tp", "s_cp", "s_dp", "s_pp"), np.ones(len(few["tp"]), dtype=np.int64)
    )
    modules = members.space.modules
    return (
        cached_table(
            layer_table, problem, Rows(columns=few | strides), sets=len(modules), modules=modules
        ),
        row,
    )


def _meshes(
    problem: Problem, members: Members, pairs: _Pairs, *, cut: IntArray, shards: IntArray
) -> tuple[MeshTable, IntArray]:
    """Rows of each way of each mesh, one for each sharding group; and of each pair the row of the
    first one.

    Args:
        cut: see `line_rows`.
        shards: members of the space's sharding groups.
    """
    outer, mesh = members.outers.columns, members.meshes.columns
    key = {"mesh": outer["mesh"][pairs.outer], "sp": cut[pairs.outer], "way": pairs.way}
    first, row = first_of_each(key)
    each = np.repeat(first, len(shards))
    some = _Pairs(pairs.lines, pairs.outer[each], pairs.line[each], pairs.way[each])
    columns = {name: mesh[name][key["mesh"][each]] for name in _MESH} | {"sp": key["sp"][each]}
    ones = np.ones_like(each)
    rows = Rows(columns=columns | {"ulysses": ones, "gather": 0 * ones, "mbs": ones})
    wanted = np.tile(shards, len(first))
    shard = legal_shards(rows, wanted)
    return mesh_table(problem, rows, shard, lying=_sums(problem, some, rows, shard)), row * len(
        shards
    )


def _sums(
    problem: Problem, pairs: _Pairs, rows: Rows, shard: IntArray
) -> tuple[SumSpans, SumSpans]:
    """Places of the groups that reduce dense gradients and those of experts; experts that are
    cut like the MLP are reduced with the dense ones.
    """
    network, holders = (
        network_of(problem.cluster, library=problem.runtime.collective_library),
        rows["cp"] * rows["dp"],
    )
    copied = tokens_copied(rows)
    edp = np.where(copied, holders, rows["tp"] * holders // (rows["ep"] * rows["etp"]))
    cut = np.gcd(np.maximum(shard * edp // holders, 1), edp)
    dense = _sum_spans(pairs, network, kinds=np.zeros_like(copied), members=holders, shard=shard)
    return dense, _sum_spans(pairs, network, kinds=~copied, members=edp, shard=cut)


def _sum_spans(
    pairs: _Pairs, network: Network, *, kinds: BoolArray, members: IntArray, shard: IntArray
) -> SumSpans:
    """Spans of the groups of experts' own meshes where `kinds` is True, else of dense gradients."""

    def lying(part: IntArray) -> IntArray:
        return np.where(kinds[:, None], pairs.below("experts", part), pairs.below("dense", part))

    whole, some = lying(np.zeros_like(shard)), (shard > 1) & (shard < members)
    inner, outer = (lying(np.where(some, sign * shard, 0)) for sign in (1, -1))
    # Of parts of which it is not known how they lie nothing is priced.
    known = (inner > 0).all(axis=1) & (outer > 0).all(axis=1)
    sizes = np.where(known, shard, 1), np.where(known, members // shard, 1), members
    spans = (
        (np.where((size > 1)[:, None], counts, 1), size)
        for counts, size in zip((inner, outer, whole), sizes, strict=True)
    )
    found = [
        span_with(
            network.tiers, (*counts.T, size), in_network_reduction=network.in_network_reduction
        )
        for counts, size in spans
    ]
    return SumSpans(found[0], found[1], found[2], shard)
