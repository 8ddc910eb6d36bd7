"""When nothing can run: the tightest constraint, by how much, and changes that do fit."""

import re
from dataclasses import replace
from functools import cache

import pytest

from shardwright.errors import InfeasibleError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.grid import build_error_where_nothing_fits as infeasible_hints
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space, smallest
from shardwright.search.grid.changes_of_infeasible_request import least_memory_space, same_choices
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.grid_search_space import AXES, on_all_devices
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import (
    exhaustive_space,
    standard_space,
)
from shardwright.units import GIB
from tests.golden.files import FOLDER, assert_golden
from tests.search.brute import count, judge
from tests.search.problems import Case, facts_of, real_problem, small_case
from tests.tiers import in_both, in_proof, many, numbers

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
    problem = real_problem(
        model, cluster, seq_len=seq_len, global_batch=global_batch, runtime=runtime
    )
    facts = facts_of(problem)
    space = restricted(
        (exhaustive_space if wide else standard_space)(problem, facts), pins=pins or {}, excludes={}
    )
    return Case(problem=problem, facts=facts, space=on_all_devices(space) if use_all else space)


def refusal(case: Case) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        find(
            case.problem,
            case.space,
            case.facts,
            capacity=smallest_memory_bytes(case.problem.cluster),
            top=1,
        )
    assert caught.value.exit_code == 6
    return caught.value


CASES = {
    "too few devices": asked("llama-3.1-405b", "h100-sxm:16", seq_len=8192, global_batch=256),
    "too few devices, wide": asked(
        "gpt3-175b", "a100-sxm-80gb:8", seq_len=2048, global_batch=64, wide=True
    ),
    "experts on one node": asked("mixtral-8x22b", "h100-sxm:8", seq_len=4096, global_batch=8),
    "one device without offload": asked(
        "llama-2-7b", "h100-sxm:1", seq_len=4096, global_batch=8, runtime="torchtitan"
    ),
    "a long sequence, no recompute": asked(
        "llama-2-7b",
        "h100-sxm:8",
        seq_len=524288,
        global_batch=8,
        pins={"recompute": ("none",), "offload": ("0",)},
    ),
    "a batch that does not divide": asked(
        "llama-2-7b", "h100-sxm:7", seq_len=4096, global_batch=256, pins={"pp": ("1",)}
    ),
    "a batch that does not divide by a pinned dp": asked(
        "llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=6, pins={"dp": ("8",)}
    ),
    "a pinned tp that does not divide": asked(
        "llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=8, pins={"tp": ("3",)}
    ),
    "a pinned dp that does not divide": asked(
        "llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=9, pins={"dp": ("3",)}
    ),
    "sp without tp": asked(
        "llama-2-7b",
        "h100-sxm:8",
        seq_len=4096,
        global_batch=8,
        pins={"tp": ("1",), "sp": ("1",)},
        use_all=False,
    ),
    "first and last that leave a rest": asked(
        "llama-2-7b",
        "h100-sxm:8",
        seq_len=4096,
        global_batch=8,
        pins={"pp": ("4",), "first": ("5",), "last": ("6",)},
    ),
}


@cache
def refused(name: str) -> InfeasibleError:
    return refusal(CASES[name])


PROVEN = ("too few devices, wide", "experts on one node", "a long sequence, no recompute")
"""Cases whose changes take seconds to try: they are refused in proofs alone."""


@in_both
def test_refusals_are_golden() -> None:
    """One line that names the constraint and by how much, one hint that names what fits."""
    golden = (FOLDER / "infeasible.txt").read_text(encoding="utf-8")
    lines = []
    for name in CASES:
        if name in PROVEN and not in_proof():
            heading = f"# {name}\n"
            lines += [heading + golden.split(heading)[1].partition("\n\n")[0], ""]
            continue
        error = refused(name)
        lines += [f"# {name}", f"error: {error.message}", f"hint: {error.hint}", ""]
    assert_golden("infeasible.txt", "\n".join(lines))


def hinted(error: InfeasibleError) -> list[str]:
    return error.hint.split(": ", 1)[1].split("; or ")


@pytest.mark.parametrize(
    "name", ["too few devices", pytest.param("experts on one node", marks=pytest.mark.proof)]
)
def test_hinted_devices_fit_and_half_of_them_do_not(name: str) -> None:
    case = CASES[name]
    devices = next(int(h.split()[0]) for h in hinted(refused(name)) if h.endswith(" devices"))
    for count_, fits in ((devices, True), (devices // 2, False)):
        factor = count_ // case.facts.devices
        groups = tuple(replace(g, count=g.count * factor) for g in case.problem.cluster.groups)
        larger = replace(case.problem, cluster=replace(case.problem.cluster, groups=groups))
        facts = facts_of(larger)
        space = standard_space(larger, facts)
        if fits:
            answer = find(
                larger, space, facts, capacity=smallest_memory_bytes(larger.cluster), top=1
            )
            assert answer.grid.devices == devices
        else:
            refusal(Case(problem=larger, facts=facts, space=space))


@pytest.mark.parametrize("headroom", [0.0, 0.05, 0.5])
def test_a_hinted_device_keeps_the_headroom_free(headroom: float) -> None:
    """The hint names the memory of a device, of which a search fills the share beside headroom."""
    case = CASES["one device without offload"]
    memory = smallest_memory_bytes(case.problem.cluster)
    with pytest.raises(InfeasibleError) as caught:
        find(
            case.problem,
            case.space,
            case.facts,
            capacity=int(memory * (1 - headroom)),
            top=1,
            hints=False,
        )
    needed = re.search(r"needs ([\d.]+) GiB on stage", caught.value.message)
    hinted_device = re.search(r"([\d.]+) GiB a device$", caught.value.hint)
    assert needed is not None
    assert hinted_device is not None
    wanted = float(needed[1]) / (1 - headroom)
    assert float(hinted_device[1]) == pytest.approx(wanted, rel=1e-3)


@in_both
def test_hinted_memory_is_just_enough() -> None:
    """The smallest member's exact need, by brute force: with it the search answers, with a byte
    less it refuses."""
    tried, chosen = 0, numbers(1, 40, first=3000)
    for seed in chosen:
        case = small_case(seed, most=many(400, 3000))
        counted = count(case.problem, case.space, case.facts)
        if not counted.grids:
            continue
        least = min(j.need for j in judge(case.problem, counted.grids.values()))
        found = smallest(
            case.problem, bound_space(case.problem, case.space, case.facts, capacity=0)
        )
        assert found is not None
        assert found[1].reserved == least
        assert find(case.problem, case.space, case.facts, capacity=least, top=1).grid
        with pytest.raises(InfeasibleError, match="nothing fits"):
            find(case.problem, case.space, case.facts, capacity=least - 1, top=1, hints=False)
        tried += 1
    assert 2 * tried > len(chosen)


def test_lean_members_are_members_of_least_memory() -> None:
    """Probes look at a part of the space; the smallest member is in it, to within a few percent."""
    for name in ("too few devices", "experts on one node", "a long sequence, no recompute"):
        case = CASES[name]
        whole = smallest(
            case.problem, bound_space(case.problem, case.space, case.facts, capacity=0)
        )
        part = smallest(
            case.problem,
            bound_space(case.problem, least_memory_space(case.space), case.facts, capacity=0),
        )
        assert whole is not None
        assert part is not None
        assert whole[1].reserved <= part[1].reserved <= 1.05 * whole[1].reserved


def _asked_with(hint: str, case: Case) -> Case:
    """The problem that a hint's words ask for, made as a user's request is."""
    flag, _, value = hint.removesuffix(" (changes numerics)").partition(" ")
    problem, job, pins = case.problem, case.problem.job, {}
    if flag == "--pin":
        name, _, chosen = value.partition("=")
        pins = {name: (chosen,)}
    elif flag == "--runtime":
        problem = replace(problem, runtime=load_runtime(value))
    elif flag == "--train":
        problem = replace(problem, model=trained(problem.model, value))
    elif flag == "--global-batch":
        problem = replace(problem, job=replace(job, global_batch=int(value)))
    elif flag == "--seq-len":
        problem = replace(
            problem,
            job=replace(job, sequences=tuple(replace(s, tokens=int(value)) for s in job.sequences)),
        )
    else:
        assert value == "devices", hint
        groups = tuple(
            replace(g, count=g.count * int(flag) // case.facts.devices)
            for g in problem.cluster.groups
        )
        problem = replace(problem, cluster=replace(problem.cluster, groups=groups))
    facts = facts_of(problem)
    return Case(
        problem=problem,
        facts=facts,
        space=restricted(standard_space(problem, facts), pins=pins, excludes={}),
    )


def _hints(error: InfeasibleError) -> list[str]:
    """The hints, one a change: runtimes that are told together apart."""
    found = []
    for hint in hinted(error):
        runtimes = hint.removeprefix("--runtime ")
        found += (
            [hint]
            if runtimes == hint
            else [f"--runtime {name}" for name in runtimes.replace(" or ", ", ").split(", ")]
        )
    return found


LITTLE = {"seq_len": 2048, "global_batch": 16}


@cache
def refused_told() -> tuple[Case, InfeasibleError, list[str]]:
    """Of two cards that are too small: the refusal, and what was told as progress."""
    said: list[str] = []
    case = asked("qwen2.5-7b", "rtx-4090:2", **LITTLE)
    with pytest.raises(InfeasibleError) as caught:
        find(
            case.problem,
            case.space,
            case.facts,
            capacity=smallest_memory_bytes(case.problem.cluster),
            top=1,
            progress=lambda text, done, total: said.append(text),
        )
    assert caught.value.exit_code == 6
    return case, caught.value, said


def test_the_wider_space_is_the_exhaustive_one_with_the_same_pins() -> None:
    case = asked("llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=8, pins={"mbs": ("1",)})
    wide = exhaustive_space(case.problem, case.facts)
    space = same_choices(case.space, case.facts, case.problem, case.problem, kind="exhaustive")
    assert space.name == "exhaustive"
    assert space.of("mbs") == (1,)
    assert all(space.of(axis) == wide.of(axis) for axis in AXES if axis != "mbs")
    assert any(wide.of(axis) != case.space.of(axis) for axis in AXES if axis != "mbs")


def test_hints_are_of_the_whole_world_software_first_and_each_is_verified_by_a_search() -> None:
    """Two cards are enough with 16-bit gradients, under DeepSpeed or for adapters: more hardware is
    told last."""
    case, error, _ = refused_told()
    *changes, need = _hints(error)
    assert need.endswith(" a device")
    kinds = [hint.split()[0] if hint.startswith("--") else "hardware" for hint in changes]
    assert kinds == sorted(
        kinds,
        key=["--pin", "--runtime", "--train", "--global-batch", "--seq-len", "hardware"].index,
    )
    assert "--pin grad_dtype=bf16 (changes numerics)" in changes
    assert "--runtime deepspeed-0.16" in changes
    assert "--train lora:r16" in changes
    for hint in changes:
        one = _asked_with(hint, case)
        found = find(
            one.problem,
            one.space,
            one.facts,
            capacity=smallest_memory_bytes(one.problem.cluster),
            top=1,
        )
        assert found.prediction.fits, hint


def test_a_search_whose_refusal_nobody_reads_tries_no_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, tried = asked("qwen2.5-7b", "rtx-4090:2", **LITTLE), []
    monkeypatch.setattr(
        infeasible_hints, "fits", lambda change, capacity: tried.append(change.text)
    )
    with pytest.raises(InfeasibleError, match="nothing fits"):
        find(
            case.problem,
            case.space,
            case.facts,
            capacity=smallest_memory_bytes(case.problem.cluster),
            top=1,
            hints=False,
        )
    assert not tried
    refusal(case)
    assert len(tried) > 20


def test_trials_are_told_as_progress() -> None:
    _, _, said = refused_told()
    assert [text for text in said if "other runtimes" in text]


def with_host_memory(case: Case, *, gib: int) -> Case:
    groups = tuple(
        replace(g, kind=replace(g.kind, host=replace(g.kind.host, memory_bytes=gib * GIB)))
        for g in case.problem.cluster.groups
    )
    return replace(
        case, problem=replace(case.problem, cluster=replace(case.problem.cluster, groups=groups))
    )


def test_too_little_host_memory_is_named_with_what_a_node_lacks() -> None:
    """Adam's states and gradients of a 70B offloaded beside 64 GiB a node: 16 bytes x 70.55e9 / 4
    nodes is 263 GiB."""
    pins = {"offload": ("100",), "pp": ("1",), "tp": ("8",), "mbs": ("1",)}
    case = with_host_memory(
        asked("llama-3.1-70b", "a100-sxm-80gb:32", seq_len=4096, global_batch=64, pins=pins), gib=64
    )
    error = refusal(case)
    found = re.search(
        r"the host memory of each of 4 nodes by (\S+) GiB \(needs (\S+) GiB, (\S+) GiB of it"
        r" optimizer; has 64 GiB\)",
        error.message,
    )
    assert found is not None, error.message
    lacks, need, states = map(float, found.groups())
    parameters = case.problem.model.num_parameters
    assert need == pytest.approx(16 * parameters / 4 / GIB, rel=1e-3)
    assert states == pytest.approx(12 * parameters / 4 / GIB, rel=1e-3)
    assert lacks == pytest.approx(need - 64, abs=0.1)
    assert "another offload than 100" in hinted(error)
    assert "--headroom 0" not in error.hint
