"""Communication that lowering derives for a layer: kinds, groups and bytes by hand, and backward as
the adjoint of forward.

T = tokens of one microbatch of a replica, d = hidden, w = bytes an element, X = T d w. all_gather,
reduce_scatter and all_reduce of V move the full buffer V; an all_to_all of V is one member's
buffer; a ring sends V a hop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.model.ir.model_graph import Model
from shardwright.program.block.block_program import BlockProgram, Phase
from shardwright.program.block.symbolic_sizes import Degrees
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import cluster_of, problem_of
from tests.program.structures import structure_of
from tests.program.unfold import move_bytes
from tests.strategies import dense_model, expert_model

AR, AG, RS, A2A, SEND = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.SEND,
)
F, I, W = Phase.F, Phase.I, Phase.W  # noqa: E741 - PyTorch's letter
SEQ, MBS, HEADS, HEAD, D, ELEMENT = 64, 2, 16, 8, 128, 2
T = SEQ * MBS
X = T * D * ELEMENT
REGATHERS = load_runtime("megatron-core")
KEEPS_WHOLE = replace(REGATHERS, name="keeps-whole", tp_input_regather=False)

Moved = Counter[tuple[Phase, Collective, str, int]]


def lowered(
    model: Model, grid: Grid, block: str, runtime: object = REGATHERS
) -> tuple[BlockProgram, Degrees]:
    problem = problem_of(model, cluster_of(8, node=8), runtime=runtime, seq_len=SEQ)  # type: ignore[arg-type]
    programs = programs_of(problem, structure_of(sp=grid.sp, gather=grid.gather, tp=grid.tp))
    return next(p for p in programs if p.block == block), rows_of([grid]).degrees()


def moved(
    model: Model, block: str = "layer", *, runtime: object = REGATHERS, **axes: int | bool
) -> Moved:
    """(phase, kind, axis, bytes) of the moves of a block, those over groups of one left out."""
    program, degrees = lowered(model, Grid(microbatch=MBS, **axes), block, runtime)  # type: ignore[arg-type]
    assert all(len(m.axes) == 1 for m in program.moves)
    found = [(m.phase, m.kind, m.axes[0], move_bytes(m, degrees)) for m in program.moves]
    return Counter(entry for entry in found if entry[3])


DENSE, FEW_KEYS, SPARSE = dense_model(), dense_model(kv_heads=2), expert_model(shared_ffn=0)


def test_one_device_moves_nothing() -> None:
    for model, block in ((DENSE, "embed"), (DENSE, "layer"), (DENSE, "head"), (SPARSE, "sparse")):
        assert not moved(model, block)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallel_copies_of_the_stream(t: int) -> None:
    # After proj and down; and of the gradients of what qkv and up read.
    assert moved(DENSE, tp=t) == Counter({(F, AR, "tp", X): 2, (I, AR, "tp", X): 2})
    assert moved(DENSE, "embed", tp=t) == Counter({(F, AR, "tp", X): 1})
    # Three fp32 numbers a token: the largest logit, the sum of exponents, the label's logit.
    assert moved(DENSE, "head", tp=t) == Counter({(F, AR, "tp", T * 3 * 4): 1, (I, AR, "tp", X): 1})


@pytest.mark.parametrize("t", [2, 4, 8])
def test_sequence_parallel_stream(t: int) -> None:
    passes = {(F, AG, "tp", X): 2, (F, RS, "tp", X): 2, (I, AG, "tp", X): 2, (I, RS, "tp", X): 2}
    assert moved(DENSE, tp=t, sp=True) == Counter({**passes, (W, AG, "tp", X): 2})
    assert moved(DENSE, tp=t, sp=True, runtime=KEEPS_WHOLE) == Counter(passes)
    assert moved(DENSE, "embed", tp=t, sp=True) == Counter(
        {(F, RS, "tp", X): 1, (I, AG, "tp", X): 1}
    )
    head = {
        (F, AG, "tp", X): 1,
        (I, RS, "tp", X): 1,
        (W, AG, "tp", X): 1,
        (F, AR, "tp", T * 3 * 4): 1,
    }
    assert moved(DENSE, "head", tp=t, sp=True) == Counter(head)


@pytest.mark.parametrize(("t", "kv_heads", "held"), [(1, 8, 8), (2, 8, 4), (2, 2, 1), (4, 2, 1)])
def test_ring(t: int, kv_heads: int, held: int) -> None:
    # KV of one device: keys and values of its positions and of the heads it holds (copied where
    # there are fewer than t).
    kv = 2 * (T // 4) * held * HEAD * ELEMENT
    found = moved(dense_model(kv_heads=kv_heads), cp=4, tp=t, sp=t > 1)
    assert {k: n for k, n in found.items() if k[2] == "ring"} == {
        (F, SEND, "ring", 3 * kv): 1,
        (I, SEND, "ring", 3 * 2 * kv): 1,
    }
    passes = {(F, AG), (F, RS), (I, AG), (I, RS), (W, AG)} if t > 1 else set()
    assert {k: n for k, n in found.items() if k[2] == "tp"} == {
        (p, c, "tp", X // 4): 2 for p, c in passes
    }


def test_gathered_context() -> None:
    kv = 2 * (T // 4) * 8 * HEAD * ELEMENT
    whole = 4 * kv
    assert moved(DENSE, cp=4, gather=True) == Counter(
        {(F, AG, "ring", whole): 1, (I, AG, "ring", whole): 1, (I, RS, "ring", whole): 1}
    )


@pytest.mark.parametrize(
    ("model", "u", "keys"), [(DENSE, 4, 2), (DENSE, 8, 1), (FEW_KEYS, 2, 1), (FEW_KEYS, 8, 0.25)]
)
def test_ulysses(model: Model, u: int, keys: float) -> None:
    # What one device has after the exchange: all T positions of its share of query heads, and of
    # `keys` key and value heads, of which columns count no copies: 2 heads of 8 readers.
    qkv, out = int(T * (HEADS // u + 2 * keys) * HEAD * ELEMENT), T // u * HEADS * HEAD * ELEMENT
    assert moved(model, cp=u, ulysses=u) == Counter(
        {
            (F, A2A, "ulysses", qkv): 1,
            (I, A2A, "ulysses", qkv): 1,
            (F, A2A, "ulysses", out): 1,
            (I, A2A, "ulysses", out): 1,
        }
    )


def test_ring_of_ulysses_groups() -> None:
    # Two rings of Ulysses groups of four: positions are cut by the ring, then traded for heads; one
    # hop of the group's keys.
    qkv, out = T // 2 * (HEADS // 4 + 2 * 2) * HEAD * ELEMENT, T // 8 * HEADS * HEAD * ELEMENT
    kv = 2 * (T // 2) * 2 * HEAD * ELEMENT
    expected = {(p, A2A, "ulysses", v): 1 for p in (F, I) for v in (qkv, out)}
    assert moved(DENSE, cp=8, ulysses=4) == Counter(
        {**expected, (F, SEND, "ring", kv): 1, (I, SEND, "ring", 2 * kv): 1}
    )


@pytest.mark.parametrize(
    ("t", "cp", "ep", "etp"), [(2, 2, 4, 2), (1, 1, 8, 1), (2, 1, 1, 2), (4, 1, 4, 1), (1, 2, 2, 4)]
)
def test_experts(t: int, cp: int, ep: int, etp: int) -> None:
    topk = 2
    here = T // (t * cp)
    tokens, weights = topk * here * D * ELEMENT, topk * here * ELEMENT
    expected: Moved = Counter()
    for volume, times in ((tokens, 2), (weights, 1)):
        if ep > 1:
            expected[F, A2A, "ep", volume] += times
            expected[I, A2A, "ep", volume] += times
        if etp > 1:
            expected[F, AG, "etp", etp * volume] += 1
            expected[I, RS, "etp", etp * volume] += 1
    if etp > 1:
        expected[F, RS, "etp", etp * tokens] += 1
        expected[I, AG, "etp", etp * tokens] += 1
    found = moved(SPARSE, "sparse", tp=t, sp=t > 1, cp=cp, ep=ep, etp=etp, dp=8)
    assert Counter({k: n for k, n in found.items() if k[2] in ("ep", "etp")}) == expected
    # The router works on the stream's own tokens: attention alone talks over tp.
    assert sum(n for k, n in found.items() if k[2] == "tp" and k[0] is not W) == (4 if t > 1 else 0)


ADJOINT = {AG: RS, RS: AG, A2A: A2A, AR: AR}


@pytest.mark.parametrize(
    "model",
    [DENSE, FEW_KEYS, SPARSE, expert_model()],
    ids=["dense", "few-keys", "sparse", "shared"],
)
@pytest.mark.parametrize(
    "axes",
    [
        {"tp": 4},
        {"tp": 4, "sp": True},
        {"cp": 4, "gather": True},
        {"cp": 4, "ulysses": 4},
        {"tp": 2, "sp": True, "cp": 4, "ulysses": 2, "gather": True},
        {"tp": 2, "sp": True, "ep": 4, "etp": 2, "dp": 8},
        {"dp": 8, "ep": 8},
    ],
    ids=str,
)
def test_backward_moves_are_the_adjoints_of_forward_ones(
    model: Model, axes: dict[str, int | bool]
) -> None:
    """Of every collective over every group: as many bytes of its adjoint in I (regathers and
    re-gathered keys apart)."""
    for block in model.blocks:
        found = moved(model, block.name, **axes)
        forward: Counter[tuple[Collective, str]] = Counter()
        backward: Counter[tuple[Collective, str]] = Counter()
        for (phase, kind, axis, volume), times in found.items():
            if (
                phase is F
                and not (block.name.endswith("head") and kind is AR and volume <= T * 3 * 4)
                and block.name != "embed"
            ):
                forward[ADJOINT[kind], axis] += times * volume
            elif phase is I and block.name != "embed":
                backward[kind, axis] += times * volume
        if axes.get("gather"):
            # Keys are not kept gathered: backward gathers them again.
            again = backward.pop((AG, "ring"), 0)
            assert again == backward[RS, "ring"]
        if block.name.endswith("head") and not axes.get("sp"):
            # The stream is whole before the logits: only their gradient is a sum.
            assert not forward
            continue
        assert +forward == +backward, block.name
