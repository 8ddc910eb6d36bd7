"""Lines of a grid are those of its devices, counted one by one."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.network.pipeline_chains_with_distinct_group_placement import distinct_lines
from tests.tiers import examples

SHARDS = (0, 2, 3)


@st.composite
def meshes(draw: st.DrawFn) -> dict[str, int]:
    """Degrees and strides in some order; experts over a run of the places of a stage."""
    of = {axis: draw(st.sampled_from((1, 2, 3, 4))) for axis in ("tp", "cp", "dp", "pp")}
    stride = 1
    for axis in draw(st.permutations(("tp", "cp", "dp", "pp"))):
        of[f"s_{axis}"] = stride
        stride *= of[axis]
    places = of["tp"] * of["cp"] * of["dp"]
    spread = draw(st.sampled_from([n for n in range(1, places + 1) if places % n == 0]))
    of["etp"] = draw(st.sampled_from([n for n in (1, 2, 3) if spread % n == 0]))
    return of | {"ep": spread // of["etp"]}


def device(of: dict[str, int], rank: int, t: int, c: int, d: int) -> int:
    return t * of["s_tp"] + c * of["s_cp"] + d * of["s_dp"] + rank * of["s_pp"]


def most(group: list[int], units: tuple[int, ...]) -> tuple[int, ...]:
    """The most members in a unit of each tier but the last."""
    return tuple(
        max([sum(d // unit == u for d in group) for u in {d // unit for d in group}])
        for unit in units[:-1]
    )


def tier_between(one: int, other: int, units: tuple[int, ...]) -> int:
    return next(k for k, unit in enumerate(units) if one // unit == other // unit)


@examples(25)
@given(of=meshes(), inner=st.sampled_from(((4,), (6,), (9,), (4, 12))))
def test_lines_are_those_of_devices(of: dict[str, int], inner: tuple[int, ...]) -> None:
    units = (*inner, 10**6)
    places = list(product(range(of["tp"]), range(of["cp"]), range(of["dp"])))
    found = distinct_lines(tuple(of.items()), units, ulysses=(1, 2), shards=SHARDS)
    names = sorted(found.below)

    def groups(rank: int, place: tuple[int, int, int]) -> dict[tuple[str, int], list[int]]:
        t, c, d = place
        stage = sorted(device(of, rank, *p) for p in places)
        at, spread = stage.index(device(of, rank, *place)), of["ep"] * of["etp"]
        first = at - at % spread
        holders = sorted(
            device(of, rank, t, i, j) for i in range(of["cp"]) for j in range(of["dp"])
        )
        every = {
            ("tp", 0): [device(of, rank, i, c, d) for i in range(of["tp"])],
            ("etp", 0): stage[at - at % of["etp"] :][: of["etp"]],
            ("ep", 0): stage[first + at % of["etp"] : first + spread : of["etp"]],
            ("coset", 0): stage[first : first + spread],
            ("dense", 0): holders,
            ("experts", 0): stage[at % spread :: spread],
        }
        for u in (u for u in (1, 2) if of["cp"] % u == 0):
            every["ulysses", u] = [device(of, rank, t, c - c % u + i, d) for i in range(u)]
            every["ring", u] = [device(of, rank, t, i, d) for i in range(c % u, of["cp"], u)]
        for name in ("dense", "experts"):
            for shard in range(2, len(every[name, 0])):
                every[name, shard], every[name, -shard] = (
                    every[name, 0][:shard],
                    every[name, 0][::shard],
                )
        return every

    def line(place: tuple[int, int, int]) -> tuple[object, ...]:
        ranks = range(of["pp"])
        where = [device(of, rank, *place) for rank in ranks]
        lying = tuple(
            tuple(most(groups(rank, place)[name], units) for name in names) for rank in ranks
        )
        behind, before = (
            tuple(tier_between(where[r], where[(r + step) % of["pp"]], units) for r in ranks)
            for step in (1, -1)
        )
        return lying, behind, before

    told = {
        (
            tuple(tuple(tuple(found.below[name][q]) for name in names) for q in ways),
            tuple(behind),
            tuple(before),
        )
        for ways, behind, before in zip(
            found.ways.tolist(), found.behind.tolist(), found.before.tolist(), strict=True
        )
    }
    assert told == {line(place) for place in places}
    assert len(told) == len(found.ways)
    for kind, members in (
        ("dense", of["cp"] * of["dp"]),
        ("experts", len(places) // (of["ep"] * of["etp"])),
    ):
        assert (kind, members) not in names, "the whole group is no sharding group"
