"""Runtimes: complete, cited, and found by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import RuntimeModelError, ShardwrightError
from shardwright.runtime.facts import cite, derive, uncited
from shardwright.runtime.registry import default_runtime, load_runtime, runtime_aliases, runtime_names
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, FullRecompute, TpOverlap
from shardwright.strategy.grid.axes import Recompute
from tests.tiers import examples

NAMES = runtime_names()


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_one_fact_with_a_link(name: str) -> None:
    runtime = load_runtime(name)
    assert runtime.name == name
    assert uncited(runtime) == ()
    fields = [fact.field for fact in runtime.facts]
    assert len(fields) == len(set(fields))
    assert all(hasattr(runtime, field) for field in fields)
    assert all(fact.link.startswith("https://") for fact in runtime.facts)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_consistent(name: str) -> None:
    runtime = load_runtime(name)
    assert runtime.zero_with_pipeline <= max(runtime.zero_stages)
    assert set(runtime.schedules) <= {"gpipe", "1f1b", "interleaved-1f1b"}
    assert runtime.schedules
    assert Recompute(runtime.default_recompute)
    assert runtime.workspace_bytes > 0
    assert 0 <= runtime.allocator_reserve_percent < 50
    assert runtime.bucket_bytes >= 0
    assert runtime.fused_loss or runtime.logits_bytes >= 6
    assert len(runtime.released) == 7


def test_aliases_agree_with_the_files() -> None:
    declared = {alias: name for name in NAMES for alias in load_runtime(name).aliases}
    assert runtime_aliases() == declared
    for alias, name in declared.items():
        assert load_runtime(alias.upper()).name == name


def test_default_is_megatron_core() -> None:
    assert default_runtime().name == "megatron-core-0.12"
    assert default_runtime() is load_runtime("megatron-core")


def test_typo_names_the_nearest() -> None:
    with pytest.raises(RuntimeModelError, match="megatron-core") as caught:
        load_runtime("megatron-cor")
    assert caught.value.exit_code == 8


@examples(100)
@given(st.text())
def test_any_text_is_a_runtime_or_an_error_of_ours(text: str) -> None:
    message = ""
    try:
        load_runtime(text)
    except ShardwrightError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


def test_generations_differ_where_history_says() -> None:
    y2021, y2022, core = (load_runtime(n) for n in ("megatron-2021", "megatron-2022", "megatron-core"))
    assert (y2021.sequence_parallel, y2022.sequence_parallel, core.sequence_parallel) == (False, True, True)
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


def test_derive_refuses_a_change_without_a_fact() -> None:
    with pytest.raises(ValueError, match="bucket_bytes"):
        derive(default_runtime(), facts=(), bucket_bytes=1)
    derived = derive(default_runtime(), facts=cite("https://example.org", "bucket_bytes"), bucket_bytes=1)
    assert derived.bucket_bytes == 1
    assert [f.link for f in derived.facts if f.field == "bucket_bytes"] == ["https://example.org"]
