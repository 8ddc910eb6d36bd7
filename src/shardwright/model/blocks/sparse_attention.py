"""Sparse attention by an indexer: a cheap scorer picks the keys that a query attends to
(DeepSeek-V3.2-Exp report, section 2; MiniMax-M3).

Operators: ``index_q index_k index_k_norm index_weights index``. The scorer sums over its heads
before it selects, so a split on t replicates it, as the public training frameworks do: all its
widths are hidden extents. On an INDEX operator `attention` has the scorer's heads over one key
head, no values (``value_dim`` 0), and sees all keys.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.lazy_dataclass import dataclass
from shardwright.model.blocks.dense_blocks import hidden_extent, linear, norm
from shardwright.model.ir.config_fields import MAX_CONTEXT, MAX_HEAD_DIM, MAX_HEADS, Fields
from shardwright.model.ir.operator import (
    AttentionShape,
    BlockChoice,
    Operator,
    OperatorClass,
    OperatorKind,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexShape:
    """A scorer of `heads` heads of `head_dim`, which selects `topk` keys a query."""

    heads: int
    head_dim: int
    topk: int


def index_shape(fields: Fields) -> IndexShape:
    """The sizes in DeepSeek's spelling (``index_*``)."""
    return IndexShape(
        heads=fields.integer("index_n_heads", maximum=MAX_HEADS),
        head_dim=fields.integer("index_head_dim", maximum=MAX_HEAD_DIM),
        topk=fields.integer("index_topk", maximum=MAX_CONTEXT),
    )


def index_operators(
    *,
    query_source: str,
    hidden: int,
    query_width: int,
    shape: IndexShape,
    blocks: BlockChoice | None = None,
) -> tuple[Operator, ...]:
    """The scorer's projections and the selection ``index``, which the core keeps.

    Args:
        query_source, query_width: what the scorer's queries are projected from, and its width (the
            query latent in DeepSeek-V3.2).
        blocks: what each head selects by itself (MiniMax-M3), with RMSNorms of scorer queries and
            keys; nothing that a loss depends on goes through a selection, so its parameters are not
            trained. Else scores of the heads are summed with weights projected from ``norm1``, and
            keys have a LayerNorm (DeepSeek).
    """
    klass, width = OperatorClass.ATTN, hidden_extent(hidden)
    wide, one = hidden_extent(shape.heads * shape.head_dim), hidden_extent(shape.head_dim)
    queries = [
        linear(
            "index_q",
            source=query_source,
            reads=(hidden_extent(query_width),),
            writes=(wide,),
            klass=klass,
        )
    ]
    if blocks:
        gain = norm("index_q_norm", source="index_q", hidden=shape.head_dim, klass=klass)
        queries.append(replace(gain, reads=(wide,), writes=(wide,)))
    keys = [
        linear("index_k", source="norm1", reads=(width,), writes=(one,), klass=klass),
        norm(
            "index_k_norm",
            source="index_k",
            hidden=shape.head_dim,
            bias=blocks is None,
            klass=klass,
        ),
    ]
    each = hidden_extent(shape.heads)
    weights = (
        [linear("index_weights", source="norm1", reads=(width,), writes=(each,), klass=klass)]
        if blocks is None
        else []
    )
    parts = (queries[-1].name, "index_k_norm", *(w.name for w in weights))
    scorer = Operator(
        name="index",
        kind=OperatorKind.INDEX,
        klass=klass,
        inputs=parts,
        reads=(wide, one),
        writes=(hidden_extent(shape.topk * (blocks.heads if blocks else 1)),),
        keeps=(*parts, "index"),
        attention=AttentionShape(
            heads=shape.heads, kv_heads=1, head_dim=shape.head_dim, value_dim=0
        ),
        choice=blocks,
    )
    found = (*queries, *keys, *weights, scorer)
    return tuple(_untrained(operator) for operator in found) if blocks else found


def _untrained(operator: Operator) -> Operator:
    return replace(
        operator, parameters=tuple(replace(p, trainable=False) for p in operator.parameters)
    )


def with_selection(
    attention: tuple[Operator, ...], *, indexer: tuple[Operator, ...], after: str
) -> tuple[Operator, ...]:
    """`attention` with the indexer's operators behind the operator `after`, and the core keeping
    the selection.

    The selection is in the core's `keeps` and not among its inputs: it is an index, so no gradient
    goes back along that edge.
    """
    joined: list[Operator] = []
    for operator in attention:
        if operator.kind is OperatorKind.ATTENTION:
            operator = replace(
                operator, keeps=(*operator.keeps, "index"), choice=indexer[-1].choice
            )
        joined.append(operator)
        if operator.name == after:
            joined += indexer
    return tuple(joined)
