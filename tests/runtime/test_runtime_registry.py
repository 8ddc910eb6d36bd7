"""Runtimes: complete, cited, and found by name."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import RuntimeModelError, ShardwrightError
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    Capture,
    ElementKernels,
    FullRecompute,
    TpOverlap,
)
from shardwright.runtime.runtime_from_sourced_statements import (
    IDENTITY,
    derive,
    identity_fields,
    read,
    runtime,
    stated,
)
from shardwright.runtime.runtime_registry import DEFAULT, load_runtime, runtime_names
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.parallelism_grid import Recompute
from tests.registries import place, require_members, require_same_members
from tests.tiers import examples

NAMES = runtime_names()
FIELDS = {field.name for field in fields(Runtime)} - {*IDENTITY}


def uncited(made: Runtime) -> set[str]:
    """Fields that no fact backs."""
    return FIELDS - {fact.field for fact in made.facts}


def is_own(link: str) -> bool:
    """Code of this package, by the name of its module."""
    return link.startswith("shardwright.") and find_spec(link) is not None


def test_this_packages_engine_runs_every_schedule_and_stage() -> None:
    own = load_runtime("shardwright")
    require_same_members(
        own.schedules,
        SCHEDULES,
        place("src/shardwright/runtime/releases/shardwright_interpreter.py", "_SCHEDULES"),
    )
    assert (own.zero_stages, own.zero_with_pipeline) == ((0, 1, 2, 3), 3)
    assert not own.options
    assert own.own == (("grad_overlap", "on"),)
    plain = load_runtime("shardwright grad_overlap=off")
    assert (own.overlap_grad_reduce, own.gather_prefetch) == (True, 1)
    assert (plain.overlap_grad_reduce, plain.gather_prefetch) == (False, 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_one_fact_with_a_link(name: str) -> None:
    loaded = load_runtime(name)
    assert loaded.name == name
    assert uncited(loaded) == set()
    fields = [fact.field for fact in loaded.facts]
    assert len(fields) == len(set(fields))
    assert all(hasattr(loaded, field) for field in fields)
    assert all(fact.link.startswith("https://") or is_own(fact.link) for fact in loaded.facts)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_consistent(name: str) -> None:
    loaded = load_runtime(name)
    assert loaded.zero_with_pipeline <= max(loaded.zero_stages)
    require_members(
        GRID_SCHEDULES,
        loaded.schedules,
        place("src/shardwright/strategy/grid/chunk_placement_by_schedule.py", "GRID_SCHEDULES"),
    )
    assert loaded.schedules
    assert Recompute(loaded.default_recompute)
    assert loaded.workspace_bytes > 0
    assert 0 <= loaded.allocator_reserve_percent < 50
    assert loaded.bucket_bytes >= 0
    assert loaded.fused_loss or loaded.logits_bytes >= 6
    assert len(loaded.released) == 7


def test_aliases_name_one_runtime_each() -> None:
    declared = [(alias, name) for name in NAMES for alias in load_runtime(name).aliases]
    assert len(dict(declared)) == len(declared) > 10
    for alias, name in declared:
        assert alias not in NAMES
        assert load_runtime(alias.upper()).name == name


def test_default_is_megatron_core() -> None:
    assert load_runtime(DEFAULT).name == "megatron-core-0.12"
    assert load_runtime(DEFAULT) is load_runtime("megatron-core")


def test_typo_names_the_nearest() -> None:
    with pytest.raises(RuntimeModelError, match="megatron-core") as caught:
        load_runtime("megatron-cor")
    assert caught.value.exit_code == 8


@examples(50, 500)
@given(st.text())
def test_any_text_is_a_runtime_or_an_error_of_ours(text: str) -> None:
    message = ""
    try:
        load_runtime(text)
    except ShardwrightError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


def test_generations_differ_where_history_says() -> None:
    y2021, y2022, core = (
        load_runtime(n) for n in ("megatron-2021", "megatron-2022", "megatron-core")
    )
    assert (y2021.sequence_parallel, y2022.sequence_parallel, core.sequence_parallel) == (
        False,
        True,
        True,
    )
    assert y2021.attention_kernel is y2022.attention_kernel is AttentionKernel.UNFUSED
    assert core.attention_kernel is not AttentionKernel.UNFUSED
    assert not y2021.overlap_grad_reduce
    assert core.overlap_grad_reduce
    assert y2021.zero_stages == (0,)
    assert core.zero_stages == (0, 1, 2, 3)
    assert y2021.p2p_scatter_gather
    assert not core.p2p_scatter_gather
    assert load_runtime("mosaic").full_recompute is FullRecompute.STOPS_EARLY
    assert load_runtime("nemo").tp_overlap is TpOverlap.FUSED
    assert load_runtime("internevo").element_kernels is ElementKernels.EAGER


def test_nothing_differs_without_a_fact() -> None:
    with pytest.raises(TypeError, match="bucket_bytes"):
        derive(load_runtime(DEFAULT), identity_fields("derived"), bucket_bytes=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="bucket_bytes"):
        identity_fields("derived", bucket_bytes=1)  # type: ignore[call-arg]
    derived = derive(
        load_runtime(DEFAULT),
        identity_fields("derived"),
        stated("https://example.org", bucket_bytes=1),
    )
    assert derived.bucket_bytes == 1
    assert [f.link for f in derived.facts if f.field == "bucket_bytes"] == ["https://example.org"]
    assert (derived.name, derived.version, derived.aliases) == (
        "derived",
        load_runtime(DEFAULT).version,
        (),
    )
    assert uncited(derived) == set()


def test_a_framework_of_its_own_states_every_field_once() -> None:
    base = load_runtime(DEFAULT)
    given = {fact.field: getattr(base, fact.field) for fact in base.facts}
    identity = identity_fields("own", framework="Own", version="1", released="2026-01")
    assert uncited(runtime(identity, stated("https://example.org", **given))) == set()
    for field in given:
        rest = {name: value for name, value in given.items() if name != field}
        with pytest.raises(ValueError, match=rf"no fact for {field}$"):
            runtime(identity, stated("https://example.org", **rest))
    one = stated("https://example.org", bucket_bytes=1)
    for make in (runtime, partial(derive, base)):
        with pytest.raises(ValueError, match="stated twice: bucket_bytes"):
            make(identity, one, one)


def test_fields_are_switched_by_name() -> None:
    link = "https://example.org"
    derived = derive(
        load_runtime(DEFAULT),
        identity_fields("derived"),
        read(link, on="zero1_broadcasts rebuilds_norms", off="saves_quantized capture"),
    )
    assert derived.zero1_broadcasts
    assert derived.rebuilds_norms
    assert not derived.saves_quantized
    assert derived.capture is Capture.NONE
    assert {f.field for f in derived.facts if f.link == link and f.checked} == {
        "zero1_broadcasts",
        "rebuilds_norms",
        "saves_quantized",
        "capture",
    }
    for wrong in (
        {"on": "capture"},
        {"off": "zero_stages"},
        {"off": "collective_library"},
        {"bucket_byte": 1},
        {"version": "2"},
    ):
        with pytest.raises(ValueError, match="cannot state"):
            stated(link, **wrong)
