"""Sparse attention by an indexer: a cheap scorer selects the keys that a query attends to.

Sources: DeepSeek-V3.2-Exp report, section 2; MiniMax-M3.

Operators: ``index_q index_k index_k_norm index_weights index``. The scorer sums over its heads
before it selects, so a split on t replicates it, as the public training frameworks do: all its
widths are hidden extents. On an INDEX operator `attention` has the scorer's heads over one key
head, no values (``value_dim`` 0), and sees all keys.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.dense_transformer_operators import hidden_extent, linear, norm
from shardwright.model.ir.config_json_field_access import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_HEADS,
    Fields,
)
from shardwright.model.ir.operator import (
    AttentionShape,
    BlockChoice,
    Operator,
    OperatorClass,
    OperatorKind,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexShape:
    """Sizes of an indexer: scorer heads, their width, and keys selected for each query."""

    heads: int
    head_dim: int
    topk: int


def index_shape(fields: Fields) -> IndexShape:
    """Read the sizes of an indexer in DeepSeek's spelling (``index_*``)."""
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
    """Indexer of sparse attention: projections of scorer queries and keys, and selection ``index``.

    The attention core keeps the selection.

    Args:
        query_source, query_width: operator from whose output the scorer's queries are projected,
            and its width (the query latent in DeepSeek-V3.2).
        blocks: selection of key blocks by each head itself (MiniMax-M3), with RMSNorms of scorer
            queries and keys; no gradient flows through a selection, so its parameters are not
            trained. None: scores of the heads are summed with weights projected from ``norm1``, and
            keys have a LayerNorm (DeepSeek).
    """
    klass, width = OperatorClass.ATTN, hidden_extent(hidden)
    wide, head_width = hidden_extent(shape.heads * shape.head_dim), hidden_extent(shape.head_dim)
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
        linear("index_k", source="norm1", reads=(width,), writes=(head_width,), klass=klass),
        norm(
            "index_k_norm",
            source="index_k",
            hidden=shape.head_dim,
            bias=blocks is None,
            klass=klass,
        ),
    ]
    head_scores = hidden_extent(shape.heads)
    weights = (
        [
            linear(
                "index_weights", source="norm1", reads=(width,), writes=(head_scores,), klass=klass
            )
        ]
        if blocks is None
        else []
    )
    parts = (queries[-1].name, "index_k_norm", *(w.name for w in weights))
    scorer = Operator(
        name="index",
        kind=OperatorKind.INDEX,
        klass=klass,
        inputs=parts,
        reads=(wide, head_width),
        writes=(hidden_extent(shape.topk * (blocks.heads if blocks else 1)),),
        keeps=(*parts, "index"),
        attention=AttentionShape(
            heads=shape.heads, kv_heads=1, head_dim=shape.head_dim, value_dim=0
        ),
        choice=blocks,
    )
    operators = (*queries, *keys, *weights, scorer)
    return tuple(_untrained(operator) for operator in operators) if blocks else operators


def _untrained(operator: Operator) -> Operator:
    """The operator with all parameters marked as not trainable."""
    return replace(
        operator, parameters=tuple(replace(p, trainable=False) for p in operator.parameters)
    )


def with_selection(
    attention: tuple[Operator, ...], *, indexer: tuple[Operator, ...], after: str
) -> tuple[Operator, ...]:
    """Insert an indexer's operators behind operator `after`; attention cores keep its selection.

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
