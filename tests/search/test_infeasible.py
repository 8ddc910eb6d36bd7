"""When nothing can run: the tightest constraint, by how much, and changes that do fit."""

from dataclasses import replace

import pytest

from shardwright.errors import InfeasibleError
from shardwright.hardware.overrides import effective_memory
from shardwright.search.grid.bounded import bound_space, smallest
from shardwright.search.grid.find import find
from shardwright.search.grid.infeasible import lean
from shardwright.search.grid.space import exhaustive_space, on_all_devices, restricted, standard_space
from tests.golden.files import assert_golden
from tests.search.brute import count, judge
from tests.search.problems import Case, facts_of, real_problem, small_case
from tests.tiers import in_both, many, numbers

Pins = dict[str, tuple[str, ...]]


def asked(
    model: str,
    cluster: str,
    *,
    seq_len: int,
    global_batch: int,
    runtime: str = "megatron-core",
    pins: Pins | None = None,
    wide: bool = False,
    use_all: bool = True,
) -> Case:
    problem = real_problem(model, cluster, seq_len=seq_len, global_batch=global_batch, runtime=runtime)
    facts = facts_of(problem)
    space = restricted((exhaustive_space if wide else standard_space)(problem, facts), pins=pins or {}, excludes={})
    return Case(problem=problem, facts=facts, space=on_all_devices(space) if use_all else space)


def refusal(case: Case) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        find(case.problem, case.space, case.facts, capacity=effective_memory(case.problem.cluster), top=1)
    assert caught.value.exit_code == 6
    return caught.value


CASES = {
    "too few devices": asked("llama-3.1-405b", "h100-sxm:16", seq_len=8192, global_batch=256),
    "too few devices, wide": asked("gpt3-175b", "a100-sxm-80gb:8", seq_len=2048, global_batch=64, wide=True),
    "experts on one node": asked("mixtral-8x22b", "h100-sxm:8", seq_len=4096, global_batch=8),
    "one device without offload": asked("llama-2-7b", "h100-sxm:1", seq_len=4096, global_batch=8, runtime="torchtitan"),
    "a long sequence, no recompute": asked(
        "llama-2-7b", "h100-sxm:8", seq_len=524288, global_batch=8, pins={"recompute": ("none",), "offload": ("0",)}
    ),
    "a batch that does not divide": asked("llama-2-7b", "h100-sxm:7", seq_len=4096, global_batch=256, pins={"pp": ("1",)}),
    "a batch that does not divide by a pinned dp": asked("llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=6, pins={"dp": ("8",)}),
    "a pinned tp that does not divide": asked("llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=8, pins={"tp": ("3",)}),
    "a pinned dp that does not divide": asked("llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=9, pins={"dp": ("3",)}),
    "sp without tp": asked("llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=8, pins={"tp": ("1",), "sp": ("1",)}, use_all=False),
    "first and last that leave a rest": asked(
        "llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=8, pins={"pp": ("4",), "first": ("5",), "last": ("6",)}
    ),
}


def test_refusals_are_golden() -> None:
    """One line that names the constraint and by how much, one hint that names what fits."""
    lines = []
    for name, case in CASES.items():
        error = refusal(case)
        lines += [f"# {name}", f"error: {error.message}", f"hint: {error.hint}", ""]
    assert_golden("infeasible.txt", "\n".join(lines))


def hinted(error: InfeasibleError) -> list[str]:
    return error.hint.split(": ", 1)[1].split("; or ")


@pytest.mark.parametrize("name", ["too few devices", pytest.param("experts on one node", marks=pytest.mark.proof)])
def test_hinted_devices_fit_and_half_of_them_do_not(name: str) -> None:
    case = CASES[name]
    devices = next(int(h.split()[0]) for h in hinted(refusal(case)) if h.endswith(" devices"))
    for count_, fits in ((devices, True), (devices // 2, False)):
        factor = count_ // case.facts.devices
        groups = tuple(replace(g, count=g.count * factor) for g in case.problem.cluster.groups)
        larger = replace(case.problem, cluster=replace(case.problem.cluster, groups=groups))
        facts = facts_of(larger)
        space = standard_space(larger, facts)
        if fits:
            answer = find(larger, space, facts, capacity=effective_memory(larger.cluster), top=1)
            assert answer.grid.devices == devices
        else:
            refusal(Case(problem=larger, facts=facts, space=space))


@in_both
def test_hinted_memory_is_just_enough() -> None:
    """The smallest member's exact need, by brute force: with it the search answers, with a byte less it refuses."""
    tried, chosen = 0, numbers(2, 40, first=3000)
    for seed in chosen:
        case = small_case(seed, most=many(400, 3000))
        counted = count(case.problem, case.space, case.facts)
        if not counted.grids:
            continue
        least = min(j.need for j in judge(case.problem, counted.grids.values()))
        found = smallest(case.problem, bound_space(case.problem, case.space, case.facts, capacity=0))
        assert found is not None
        assert found[1].reserved == least
        assert find(case.problem, case.space, case.facts, capacity=least, top=1).grid
        with pytest.raises(InfeasibleError, match="nothing fits"):
            find(case.problem, case.space, case.facts, capacity=least - 1, top=1)
        tried += 1
    assert 2 * tried > len(chosen)


def test_lean_members_are_members_of_least_memory() -> None:
    """Probes look at a part of the space; the smallest member is in it, to within a few percent."""
    for name in ("too few devices", "experts on one node", "a long sequence, no recompute"):
        case = CASES[name]
        whole = smallest(case.problem, bound_space(case.problem, case.space, case.facts, capacity=0))
        part = smallest(case.problem, bound_space(case.problem, lean(case.space), case.facts, capacity=0))
        assert whole is not None
        assert part is not None
        assert whole[1].reserved <= part[1].reserved <= 1.05 * whole[1].reserved
