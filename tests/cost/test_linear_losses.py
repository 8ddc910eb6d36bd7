"""A loss that takes the head's product with it: how much of the logits is in memory, and what the
head takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.buffers.logits_buffers import liger_tokens
from shardwright.cost.part_phase_recompute_keys import PHASES
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import cluster_of, problem_of
from tests.strategies import dense_model

FORWARD, BACKWARD = PHASES.index("F"), PHASES.index("I")
BASES = ("deepspeed-0.16", "torchtitan-0.2", "torchtitan-0.2 kernels=eager")


def table(base: str, loss: str) -> LayerTable:
    runtime = load_runtime(f"{base} linear_loss={loss}")
    return layer_table(
        problem_of(dense_model(), cluster_of(2, node=2), runtime=runtime, seq_len=256),
        rows_of([Grid(dp=2)]),
    )


@given(
    tokens=st.integers(1, 1 << 22), width=st.integers(1, 1 << 18), hidden=st.integers(1, 1 << 14)
)
def test_a_part_of_liger_is_a_power_of_two_with_logits_of_at_most_twice_the_hidden_states(
    tokens: int, width: int, hidden: int
) -> None:
    found = int(
        liger_tokens(np.array([tokens]), local_vocabulary=np.array([width]), hidden=hidden)[0]
    )
    parts = -(-width // hidden)
    assert 1 <= found <= tokens
    assert found * parts >= tokens or found == tokens
    assert found == tokens or (found & (found - 1) == 0 and found < 2 * -(-tokens // parts))


@pytest.mark.parametrize("base", BASES)
def test_less_of_the_logits_is_in_memory(base: str) -> None:
    plain, liger, cut, chunked = (
        table(base, loss).logits_bytes[0] for loss in ("off", "liger", "cut", "chunked")
    )
    assert cut == 0 < liger < chunked < plain
    # Liger: a part in 16 bits; eight parts under autograd keep the log-softmax (4) or bf16 logits
    # (2) of all.
    model = dense_model()
    tokens, width = 256, model.vocab
    part = int(
        liger_tokens(np.array([tokens]), local_vocabulary=np.array([width]), hidden=model.hidden)[0]
    )
    assert liger == 2 * part * width
    eager = "compiled" not in dict(load_runtime(base).own).get("kernels", "") or "eager" in base
    assert chunked == -(-tokens * width * (42 if eager else 18) // 8)
    assert table(base, "parts").logits_bytes[0] * 8 == plain


@pytest.mark.parametrize("base", BASES)
def test_only_the_head_changes_and_only_cut_cross_entropy_makes_logits_again(base: str) -> None:
    plain, liger, cut = (table(base, loss) for loss in ("off", "liger", "cut"))
    assert np.array_equal(plain.seconds[:-1], liger.seconds[:-1])
    assert np.array_equal(plain.seconds[:-1], cut.seconds[:-1])
    more = (cut.seconds[-1, BACKWARD] - liger.seconds[-1, BACKWARD]).sum()
    assert 0 < more < plain.seconds[-1, FORWARD].sum()


def test_the_bound_has_the_same_bytes_as_the_plan() -> None:
    from shardwright.simulator.simulate_plan import simulate_grid

    for base in BASES:
        for loss in ("liger", "cut", "chunked", "parts"):
            problem = problem_of(
                dense_model(),
                cluster_of(2, node=2),
                runtime=load_runtime(f"{base} linear_loss={loss}"),
                seq_len=256,
                global_batch=2,
            )
            (found,) = {
                dict(stage.items)["logits"]
                for stage in simulate_grid(problem, Grid(dp=2, zero=3)).memory
            }
            assert found == table(base, loss).logits_bytes[0]
