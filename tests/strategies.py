"""Small models and hypothesis strategies for grids, trees and plans."""

from __future__ import annotations

from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.model.blocks.dense_blocks import decoder_block, embedding_block, head_block
from shardwright.model.blocks.dense_transformer_operators import attention_operators, norm, residual
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import AttentionShape, ExpertShape
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import AXES, Grid, Recompute
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.operator_split_tree import Exchange, Split
from shardwright.strategy.plan.pipeline_order import Action, Kind, NamedOrder, Table
from shardwright.strategy.plan.plan import Cadence, Plan, Shards, ShardUnit, State
from shardwright.strategy.plan.stage_splits_and_policies import (
    ActivationPolicy,
    Item,
    Keep,
    Placement,
    Selector,
    Stage,
)


def dense_model(
    *,
    layers: int = 8,
    heads: int = 16,
    kv_heads: int = 8,
    ffn: int = 512,
    vocab: int = 1000,
    tied: bool = False,
) -> Model:
    """A small Llama-like chain: embed, layers, head."""
    hidden = heads * 8
    shape = AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=8, value_dim=8)
    blocks = (
        embedding_block(hidden=hidden, vocab=vocab),
        decoder_block("layer", hidden=hidden, attention=shape, ffn=ffn, gated=True),
        head_block(hidden=hidden, vocab=vocab, tied=tied),
    )
    runs = (
        Run(name="embed", block=0, count=1),
        Run(name="layers", block=1, count=layers, inputs=("embed",)),
        Run(name="head", block=2, count=1, inputs=("layers",)),
    )
    return Model(
        name="dense", architecture="Dense", blocks=blocks, runs=runs, hidden=hidden, vocab=vocab
    )


def expert_model(
    *,
    dense: int = 2,
    sparse: int = 6,
    experts: int = 16,
    ffn: int = 64,
    shared_ffn: int = 128,
    predictors: int = 0,
) -> Model:
    """A small DeepSeek-like chain: embed, dense layers, layers with experts, modules that predict
    further tokens, head."""
    base = dense_model()
    hidden, shape = base.hidden, AttentionShape(heads=16, kv_heads=8, head_dim=8, value_dim=8)

    def sparse_block(name: str) -> Block:
        routed = moe_operators(
            source="norm2",
            hidden=hidden,
            ffn=ffn,
            experts=ExpertShape(experts=experts, topk=2),
            shared_ffn=shared_ffn,
        )
        return Block(
            name=name,
            operators=(
                norm("norm1", source=INPUT, hidden=hidden),
                *attention_operators(source="norm1", hidden=hidden, shape=shape),
                residual("residual1", source="proj", skip=INPUT, hidden=hidden),
                norm("norm2", source="residual1", hidden=hidden),
                *routed,
                residual("residual2", source=routed[-1].name, skip="residual1", hidden=hidden),
            ),
        )

    blocks = (
        *base.blocks,
        sparse_block("sparse"),
        head_block(hidden=hidden, vocab=base.vocab, tied=False, name="mtp_head"),
    )
    runs = [
        Run(name="embed", block=0, count=1),
        Run(name="layers.0", block=1, count=dense, inputs=("embed",)),
        Run(name=f"layers.{dense}", block=3, count=sparse, inputs=("layers.0",)),
    ]
    last = runs[-1].name
    if predictors:
        runs.append(Run(name="mtp", block=3, count=predictors, inputs=(last,)))
        runs.append(Run(name="mtp_head", block=4, count=1, inputs=("mtp",)))
    runs.append(Run(name="head", block=2, count=1, inputs=(last,)))
    return Model(
        name="sparse",
        architecture="Sparse",
        blocks=blocks,
        runs=tuple(runs),
        hidden=hidden,
        vocab=base.vocab,
    )


_orders = st.permutations(AXES).map(tuple)
_power = st.sampled_from((1, 1, 2, 4, 8))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Any grid that can be said, legal for some model or not."""
    degree = st.integers(1, 2**20)
    ulysses = draw(st.sampled_from((1, 2, 3, 8)))
    recompute = draw(st.sampled_from(Recompute))
    return Grid(
        tp=draw(degree),
        sp=draw(st.booleans()),
        cp=ulysses * draw(st.integers(1, 64)),
        ulysses=ulysses,
        gather=draw(st.booleans()),
        ep=draw(degree),
        etp=draw(degree),
        dp=draw(degree),
        pp=draw(degree),
        vpp=draw(st.integers(1, 64)),
        microbatch=draw(degree),
        zero=draw(st.integers(0, 3)),
        shard=draw(st.sampled_from((0, 1, 8, 12))),
        recompute=recompute,
        recompute_layers=draw(st.integers(0, 100)) if recompute is Recompute.FULL else 0,
        host=draw(st.integers(0, 100)) if recompute is Recompute.NONE else 0,
        offload=draw(st.integers(0, 100)),
        schedule=draw(st.sampled_from(("1f1b", "gpipe", "interleaved-1f1b", "zb-v", "x"))),
        first=draw(st.integers(0, 99)),
        last=draw(st.integers(0, 99)),
        order=draw(_orders),
    )


@st.composite
def small_grids(draw: st.DrawFn) -> Grid:
    """Grids with small powers of two: many are legal for the small models above with a batch of
    64."""
    ulysses = draw(st.sampled_from((1, 1, 2)))
    tp, pp = draw(_power), draw(st.sampled_from((1, 1, 2, 4)))
    vpp = draw(st.sampled_from((1, 2))) if pp > 1 else 1
    recompute = draw(st.sampled_from(Recompute))
    return Grid(
        tp=tp,
        sp=draw(st.booleans()),
        cp=ulysses * draw(st.sampled_from((1, 1, 2))),
        ulysses=ulysses,
        gather=draw(st.booleans()),
        ep=draw(_power),
        etp=draw(st.sampled_from((1, 1, 2))),
        dp=draw(_power),
        pp=pp,
        vpp=vpp,
        microbatch=draw(st.sampled_from((1, 2))),
        zero=draw(st.integers(0, 3)),
        shard=draw(st.sampled_from((0, 0, 1, 2, 4))),
        recompute=recompute,
        recompute_layers=draw(st.integers(0, 4)) if recompute is Recompute.FULL else 0,
        host=draw(st.integers(0, 4)) if recompute is Recompute.NONE else 0,
        offload=draw(st.sampled_from((0, 50))),
        schedule="interleaved-1f1b" if vpp > 1 else draw(st.sampled_from(("1f1b", "gpipe"))),
        first=draw(st.sampled_from((0, 0, 0, 1, 2, 3))) if pp > 1 else 0,
        last=draw(st.sampled_from((0, 0, 0, 1, 2, 3))) if pp > 1 else 0,
        order=draw(_orders),
    )


def _equal(dim: Dim, parts: int, step: int, zigzag: bool, child: Split | None) -> Split:
    return Split(dim=dim, parts=parts, step=step, children=(child,), zigzag=zigzag)


_dims = st.sampled_from(Dim)
_counts = st.integers(0, 40)


def trees(*, leaves: int = 6) -> st.SearchStrategy[Split | None]:
    """Any split tree of a few cuts; its devices may overlap."""

    def grow(child: st.SearchStrategy[Split | None]) -> st.SearchStrategy[Split | None]:
        equal = st.builds(_equal, _dims, st.integers(1, 8), _counts, st.booleans(), child)

        @st.composite
        def weighted(draw: st.DrawFn) -> Split:
            parts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
            n = len(parts)
            return Split(
                dim=draw(_dims),
                parts=tuple(parts),
                step=tuple(draw(st.lists(_counts, min_size=n, max_size=n))),
                children=tuple(draw(st.lists(child, min_size=n, max_size=n))),
                zigzag=draw(st.booleans()),
            )

        return equal | weighted()

    return st.recursive(st.none(), grow, max_leaves=leaves)


_names = st.sampled_from(("attn", "core", "mlp.up", "full", "layers.3", "x-y_1"))
_lane_names = ("main", "down", "up")


@st.composite
def _stages(draw: st.DrawFn) -> tuple[Stage, ...]:
    placements = st.builds(
        Placement,
        select=st.builds(
            Selector,
            classes=st.lists(_names, max_size=2).map(tuple),
            blocks=st.none() | st.tuples(_counts, _counts),
        ),
        split=trees(leaves=3),
        offset=_counts,
        exchange=st.none() | st.sampled_from(Exchange),
    )
    shared = draw(st.lists(st.lists(placements, max_size=3).map(tuple), min_size=1, max_size=2))
    items = st.builds(Item, count=_counts) | st.builds(Item, name=_names, count=st.integers(0, 3))
    stages = st.builds(
        Stage,
        items=st.lists(items, min_size=1, max_size=3).map(tuple),
        base=_counts,
        placements=st.sampled_from(shared),
        keeps=st.lists(
            st.builds(
                Keep,
                blocks=st.tuples(st.integers(0, 4), st.integers(0, 8)),
                how=st.sampled_from(ActivationPolicy),
                operators=st.lists(_names, min_size=1, max_size=2).map(tuple),
                unit=st.integers(1, 3),
                percent=st.integers(0, 100),
            ),
            max_size=2,
        ).map(tuple),
        every=st.integers(1, 2),
    )
    return tuple(draw(st.lists(stages, min_size=1, max_size=6)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan that can be said; hardly any is legal."""
    names = _lane_names[: draw(st.integers(1, 3))]
    lanes = tuple(
        Lane(
            name=name,
            samples=draw(_counts),
            microbatches=draw(_counts),
            stages=draw(_stages()),
            slices=tuple(draw(st.lists(st.integers(1, 9), max_size=3))),
            role=draw(st.sampled_from(Role)),
        )
        for name in names
    )
    actions = st.builds(
        Action,
        lane=st.integers(0, len(names) - 1),
        chunk=_counts,
        kind=st.sampled_from(Kind),
        microbatch=_counts,
        slice=_counts,
    )
    rows = st.tuples(
        _counts, st.lists(actions | st.tuples(actions, actions), max_size=4).map(tuple)
    )
    named = st.builds(
        NamedOrder,
        schedule=st.sampled_from(("1f1b", "zb-v", "dualpipe")),
        lanes=st.just(names),
        parameters=st.lists(
            st.tuples(st.sampled_from(("seed", "chunk")), _counts | _names), max_size=2
        ).map(tuple),
    )
    table = st.builds(Table, lanes=st.just(names), rows=st.lists(rows, max_size=3).map(tuple))
    rules = st.builds(
        Shards,
        parameters=st.lists(_names, max_size=2).map(tuple),
        optimizer=_counts,
        gradient=_counts,
        parameter=_counts,
        gather=st.sampled_from(Cadence),
        reduce=st.sampled_from(Cadence),
        unit=st.sampled_from(ShardUnit),
        host=st.lists(st.tuples(st.sampled_from(State), st.integers(0, 100)), max_size=2).map(
            tuple
        ),
        by_memory=st.booleans(),
    )
    return Plan(
        devices=draw(st.integers(1, 10**6)),
        lanes=lanes,
        orders=tuple(draw(st.lists(named | table, max_size=2))),
        shards=tuple(draw(st.lists(rules, max_size=2))),
    )


def legal(grid: Grid, *, model: Model, global_batch: int, seq_len: int = 64) -> bool:
    """No rule of grids is broken, on as many devices as the grid has."""

    try:
        return not violations(
            grid,
            facts=grid_facts(
                model, devices=grid.devices, global_batch=global_batch, seq_len=seq_len
            ),
        )
    except StrategyError:
        return False
