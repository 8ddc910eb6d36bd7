"""A policy by name: what it keeps, what runs again for the rest, and what waits in host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.model.ir.block import INPUT
from shardwright.program.block.tensors_kept_by_selective_recompute import named_policy
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import KeptOutput
from shardwright.runtime.runtime_registry import load_runtime
from tests.strategies import dense_model, expert_model

LAYER = dense_model().blocks[1]
MAXTEXT = load_runtime("maxtext")


def policy(*kept: KeptOutput, host: tuple[KeptOutput, ...] = ()) -> Runtime:
    return replace(MAXTEXT, name="any", kept_outputs=kept, host_outputs=host)


def again(runtime: Runtime) -> set[str]:
    found = named_policy(LAYER.operators, runtime)
    assert found is not None
    return set(found.again)


def test_nothing_named_runs_all_again_but_the_last_product() -> None:
    assert again(policy()) == {
        "norm1",
        "qkv",
        "rotary",
        "core",
        "proj",
        "residual1",
        "norm2",
        "up",
        "act",
    }


def test_kept_queries_keys_and_values_spare_their_product_only() -> None:
    # The core's output and its log-sum-exp are made anew, and the products behind it up to the
    # activation.
    assert again(policy(KeptOutput.QKV)) == {
        "norm1",
        "core",
        "proj",
        "residual1",
        "norm2",
        "up",
        "act",
    }


def test_kept_products_leave_what_is_element_wise_and_the_core() -> None:
    products = (KeptOutput.QKV, KeptOutput.PROJ, KeptOutput.UP, KeptOutput.DOWN)
    assert again(policy(*products)) == {"norm1", "core", "residual1", "norm2", "act"}
    assert again(policy(*products, KeptOutput.CORE)) == {"norm1", "residual1", "norm2", "act"}


def test_what_nobody_reads_is_not_kept() -> None:
    found = named_policy(LAYER.operators, policy(KeptOutput.DOWN, KeptOutput.PROJ))
    assert found is not None
    assert found.kept == {INPUT, "proj"}


def test_experts_products_are_named_too() -> None:
    block = next(
        b for b in expert_model().blocks if any(o.experts is not None for o in b.operators)
    )
    found = named_policy(block.operators, policy(KeptOutput.UP))
    assert found is not None
    grouped = [o.name for o in block.operators if o.experts is not None and o.name.endswith("up")]
    assert grouped
    assert set(grouped) <= found.kept
    assert not set(grouped) & found.again


@pytest.mark.parametrize("end", [0, -1])
def test_embedding_and_head_have_no_policy(end: int) -> None:
    assert named_policy(dense_model().blocks[end].operators, policy()) is None


@pytest.mark.parametrize(
    "value", ["qkv_proj_offloaded", "minimal_offloaded", "attention_offloaded"]
)
def test_what_waits_on_the_host_is_kept(value: str) -> None:
    found = named_policy(LAYER.operators, load_runtime(f"maxtext remat={value}"))
    assert found is not None
    assert found.host
    assert found.host <= found.kept
