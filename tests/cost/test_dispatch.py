"""Tokens on their way to experts: units of the network that a token's expert groups reach, and bytes of its copies."""

from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.collectives.members import span_of_devices
from shardwright.cost.columns import block_context
from shardwright.cost.communication import dispatch_bytes
from shardwright.hardware.cluster import Tier
from shardwright.hardware.graph import regular
from shardwright.program.block.block import Move, Phase
from shardwright.program.block.grid_structure import Structure
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.sizes import evaluate
from tests.search.problems import real_problem
from tests.tiers import examples

MANY = 10**6


def reached(units: int, groups: tuple[int, int], *, copies: int = MANY) -> float:
    """Units that a token of one byte a copy goes to, counted by what a device sends beyond its own unit; many copies reach all they can."""
    tiers = (
        Tier(name="device", num_devices=1, bandwidth=1e9, latency_s=0.0),
        Tier(name="all", num_devices=MANY, bandwidth=1e9, latency_s=0.0),
    )
    span = span_of_devices(tuple(range(units)), tiers, units=regular((1, MANY)))
    sent = dispatch_bytes(volume=np.array([float(copies)]), copies=copies, span=span, groups=groups)
    return float(sent[1][0]) / (1 - 1 / units)


@examples(100)
@given(limit=st.integers(1, 5), spare=st.integers(1, 4), each=st.sampled_from((1, 2, 3)), cut=st.booleans())
def test_units_that_hold_some_of_the_groups(limit: int, spare: int, each: int, cut: bool) -> None:
    """Every choice of groups counted one by one: units that span several groups, and groups that span several units."""
    total = (limit + spare) * each
    units = total * each if cut else total // each
    if units < 2:
        return
    chosen = list(combinations(range(total), limit))
    held = [{g * each + part for g in some for part in range(each)} if cut else {g // each for g in some} for some in chosen]
    assert reached(units, (limit, total)) == pytest.approx(sum(map(len, held)) / len(chosen), rel=1e-9)


def test_no_limit_is_as_before_and_a_limit_never_sends_more() -> None:
    for units in (2, 8, 64):
        free = reached(units, (0, 0), copies=8)
        assert free == pytest.approx(units * (1 - (1 - 1 / units) ** 8))
        sent = [reached(units, (limit, 8), copies=8) for limit in range(1, 9)]
        assert sent == sorted(sent)
        assert sent[-1] == pytest.approx(free)


def test_a_token_of_deepseek_v3_goes_to_at_most_four_nodes() -> None:
    assert reached(8, (4, 8)) == pytest.approx(4.0)
    assert reached(8, (4, 8), copies=8) == pytest.approx(4 * (1 - 0.75**8))


@pytest.mark.parametrize(
    ("words", "to_experts", "back"), [("deepseek-v3", 7168 + 4 * 56, 2 * 7168), ("deepseek-v3 dispatch_dtype=bf16", 2 * 7168, 2 * 7168)]
)
def test_what_experts_multiply_travels_in_8_bits(words: str, to_experts: int, back: int) -> None:
    """Forward: tokens out, results back. Backward: gradients of the results out, gradients of the tokens back."""
    problem = real_problem("deepseek-v3", "h800-sxm:64", seq_len=4096, global_batch=64, runtime=words, precision="fp8")
    block = next(b for b in problem.model.blocks if b.name == "moe")
    program = lower_block(block, Structure(sequence_parallel=False, routed=True), block_context(problem, block))
    degrees = {name: np.array([1]) for name in ("mbs", "tp", "ring", "ulysses", "ep", "etp", "cp")}

    def token(move: Move) -> int:
        (size,) = move.volume
        return int(evaluate(size, degrees)[0]) // prod((4096, 8))

    found: dict[tuple[Phase, bool], int] = {}
    for move in program.moves:
        if move.axes == ("ep",):  # the router's weight of a copy goes with it
            found[move.phase, move.behind] = max(token(move), found.get((move.phase, move.behind), 0))
    assert found == {(Phase.F, False): to_experts, (Phase.F, True): back, (Phase.I, True): to_experts, (Phase.I, False): back}
