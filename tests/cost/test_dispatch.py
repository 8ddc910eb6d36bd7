"""Tokens on their way to experts: units of the network that a token's expert groups reach, and
bytes of its copies."""

from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_of_device_list import span_of_devices
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.cost.network.expert_dispatch_seconds import dispatch_bytes, volume_with_rows
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.hardware.link_and_network_tier import Tier
from shardwright.program.block.block_program import BlockProgram, Move, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.symbolic_sizes import evaluate
from tests.search.problems import real_problem
from tests.tiers import examples

MANY = 10**6


def reached(units: int, groups: tuple[int, int], *, copies: int = MANY) -> float:
    """Units that a token of one byte a copy goes to, counted by what a device sends beyond its own
    unit; many copies reach all they can."""
    tiers = (
        Tier(name="device", num_devices=1, bandwidth=1e9, latency_s=0.0),
        Tier(name="all", num_devices=MANY, bandwidth=1e9, latency_s=0.0),
    )
    span = span_of_devices(tuple(range(units)), tiers, units=equal_units((1, MANY)))
    sent = dispatch_bytes(volume=np.array([float(copies)]), copies=copies, span=span, groups=groups)
    return float(sent[1][0]) / (1 - 1 / units)


@examples(35, 500)
@given(
    limit=st.integers(1, 5),
    spare=st.integers(1, 4),
    each=st.sampled_from((1, 2, 3)),
    cut=st.booleans(),
)
def test_units_that_hold_some_of_the_groups(limit: int, spare: int, each: int, cut: bool) -> None:
    """Every choice of groups counted one by one: units that span several groups, and groups that
    span several units."""
    total = (limit + spare) * each
    units = total * each if cut else total // each
    if units < 2:
        return
    chosen = list(combinations(range(total), limit))
    held = [
        {g * each + part for g in some for part in range(each)}
        if cut
        else {g // each for g in some}
        for some in chosen
    ]
    assert reached(units, (limit, total)) == pytest.approx(
        sum(map(len, held)) / len(chosen), rel=1e-9
    )


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
    ("words", "to_experts", "back"),
    [
        ("deepseek-v3", 7168 + 4 * 56, 2 * 7168),
        ("deepseek-v3 dispatch_dtype=bf16", 2 * 7168, 2 * 7168),
    ],
)
def test_what_experts_multiply_travels_in_8_bits(words: str, to_experts: int, back: int) -> None:
    """Forward: tokens out, results back. Backward: gradients of the results out, gradients of the
    tokens back."""
    problem = real_problem(
        "deepseek-v3", "h800-sxm:64", seq_len=4096, global_batch=64, runtime=words, precision="fp8"
    )
    block = next(b for b in problem.model.blocks if b.name == "moe")
    program = lower_block(
        block, Structure(sequence_parallel=False, routed=True), block_context(problem, block)
    )
    degrees = {name: np.array([1]) for name in ("mbs", "tp", "ring", "ulysses", "ep", "etp", "cp")}

    def token(move: Move) -> int:
        (size,) = move.volume
        return int(evaluate(size, degrees)[0]) // prod((4096, 8))

    found: dict[tuple[Phase, bool], int] = {}
    for move in program.moves:
        if move.axes == ("ep",):  # the router's weight of a copy goes with it
            found[move.phase, move.behind] = max(
                token(move), found.get((move.phase, move.behind), 0)
            )
    assert found == {
        (Phase.F, False): to_experts,
        (Phase.F, True): back,
        (Phase.I, True): to_experts,
        (Phase.I, False): back,
    }


@examples(25, 300)
@given(
    nodes=st.sampled_from((1, 2, 4, 8)),
    each=st.sampled_from((2, 4, 8)),
    local=st.integers(1, 16),
    routed=st.integers(1, 10**6),
)
def test_a_copy_takes_the_weights_of_its_islands_experts_along(
    nodes: int, each: int, local: int, routed: int
) -> None:
    """The row counted expert by expert, of all in the group those that lie on the devices of one
    island."""
    tiers = (
        Tier(name="island", num_devices=each, bandwidth=1e9, latency_s=0.0),
        Tier(name="all", num_devices=MANY, bandwidth=1e8, latency_s=0.0),
    )
    span = span_of_devices(tuple(range(nodes * each)), tiers, units=equal_units((each, MANY)))
    owner = [expert // local for expert in range(nodes * each * local)]
    row = sum(4 for device in owner if device // each == 0)
    own = 2
    volume = volume_with_rows(
        np.array([float(own * routed)]), rows=4 * len(owner) // own, span=span
    )
    assert float(volume[0]) == pytest.approx(routed * row)


def _dispatch(words: str, cluster: str, model: str = "nemotron-3-super") -> BlockProgram:
    problem = real_problem(
        model, cluster, seq_len=8192, global_batch=512, runtime=words, precision="fp8"
    )
    block = next(b for b in problem.model.blocks if any(o.experts is not None for o in b.operators))
    return lower_block(
        block, Structure(sequence_parallel=False, routed=True), block_context(problem, block)
    )


@pytest.mark.parametrize(
    ("words", "cluster", "told"),
    [
        ("megatron-bridge dispatcher=flex", "gb200-nvl72:64", True),
        ("megatron-bridge dispatcher=hybridep", "b200-sxm:64", True),
        ("megatron-bridge dispatcher=flex", "b200-sxm:64", False),
        ("megatron-bridge dispatcher=alltoall", "gb200-nvl72:64", False),
    ],
)
def test_hybrid_ep_tells_all_members_where_every_token_goes(
    words: str, cluster: str, told: bool
) -> None:
    """A byte for each token of each member and expert, once, before forward's tokens; rows of
    weights on the way there and back."""
    program = _dispatch(words, cluster)
    degrees = {name: np.array([1]) for name in ("mbs", "tp", "ring", "ulysses", "etp", "cp")} | {
        "ep": np.array([64])
    }
    maps = [m for m in program.moves if m.axes == ("coset",) and m.kind is Collective.ALL_GATHER]
    assert [
        (m.phase, m.behind, [int(evaluate(v, degrees)[0]) for v in m.volume]) for m in maps
    ] == ([(Phase.F, False, [64 * 8192 * 512])] if told else [])
    rows = {(m.phase, m.behind): m.rows for m in program.moves if m.rows > 1}
    assert rows == (
        {(Phase.F, False): 4 * 512 // 2, (Phase.I, False): 4 * 512 // 2} if told else {}
    )
