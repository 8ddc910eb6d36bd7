"""Multi-head latent attention (DeepSeek-V2, section 2.1) in its training form.

Queries, keys and values pass through low-rank latents.

The key/value latent is expanded to full heads and the core is ordinary attention
with heads of ``nope + rope`` for queries and keys and ``value`` for values. The absorbed form of
decoding is not written here.
"""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.dense_transformer_operators import (
    core_operator,
    head_extents,
    hidden_extent,
    linear,
    norm,
    rotary_operator,
)
from shardwright.model.ir.config_json_field_access import MAX_HEAD_DIM, MAX_HIDDEN, Fields
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim, Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Sizes of latent attention.

    Args:
        heads: query heads (keys and values have as many).
        q_lora: width of the query latent; 0 = queries are projected directly.
        kv_lora: width of the key/value latent.
        nope, rope: parts of a query/key head without and with rotary positions; the rotary part of
            the keys is one for all heads.
        value: width of a value head.
    """

    heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    value: int

    def attention(self) -> AttentionShape:
        """Shape of the attention core after expansion of the latents to full heads."""
        return AttentionShape(
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.nope + self.rope,
            value_dim=self.value,
        )


def latent_shape(fields: Fields, *, q_lora: int = 1536) -> LatentShape:
    """Read heads, latent ranks and head widths; `q_lora` is the default of ``q_lora_rank``.

    ``q_lora_rank`` null means no query latent; if it is not written, `q_lora` of the class holds.

    Every query head has its own key and value of the two widths; files also write
    ``num_key_value_heads`` and ``head_dim``.
    """
    fields.mark_read("num_key_value_heads", "head_dim")
    return LatentShape(
        heads=fields.heads(),
        q_lora=fields.integer(
            "q_lora_rank",
            minimum=0,
            maximum=MAX_HIDDEN,
            default=0 if fields.written("q_lora_rank") else q_lora,
        ),
        kv_lora=fields.integer("kv_lora_rank", maximum=MAX_HIDDEN),
        nope=fields.integer("qk_nope_head_dim", maximum=MAX_HEAD_DIM),
        rope=fields.integer("qk_rope_head_dim", maximum=MAX_HEAD_DIM),
        value=fields.integer("v_head_dim", maximum=MAX_HEAD_DIM),
    )


def mla_operators(
    *, hidden: int, shape: LatentShape, bias: bool = False, attention: AttentionShape | None = None
) -> tuple[Operator, ...]:
    """Operators of multi-head latent attention from ``norm1`` to the projected output.

    ``q_down q_norm q_up kv_down kv_norm kv_up rotary core proj``; ``q`` alone without a query
    latent.

    The down projections and their norms have no heads, so a split on t replicates them. `bias` adds
    biases to the down projections and the output (`attention_bias` of `DeepseekV3Config`).
    `attention` replaces the core's shape (a sparse selection).
    """
    core_shape = attention or shape.attention()
    query, _, value, out = head_extents(core_shape)
    keys = Extent(dim=Dim.HEADS, size=shape.heads * shape.nope, quantum=shape.nope)
    width = hidden_extent(hidden)
    klass = OperatorClass.ATTN
    if shape.q_lora:
        latent = hidden_extent(shape.q_lora)
        queries: tuple[Operator, ...] = (
            linear(
                "q_down", source="norm1", reads=(width,), writes=(latent,), klass=klass, bias=bias
            ),
            norm("q_norm", source="q_down", hidden=shape.q_lora, klass=klass),
            linear("q_up", source="q_norm", reads=(latent,), writes=(query,), klass=klass),
        )
    else:
        queries = (linear("q", source="norm1", reads=(width,), writes=(query,), klass=klass),)
    latent = hidden_extent(shape.kv_lora)
    return (
        *queries,
        linear(
            "kv_down",
            source="norm1",
            reads=(width,),
            writes=(latent, hidden_extent(shape.rope)),
            klass=klass,
            bias=bias,
        ),
        norm("kv_norm", source="kv_down", hidden=shape.kv_lora, klass=klass),
        linear("kv_up", source="kv_norm", reads=(latent,), writes=(keys, value), klass=klass),
        rotary_operator(inputs=(queries[-1].name, "kv_up", "kv_down"), shape=core_shape),
        core_operator("core", source="rotary", shape=core_shape),
        linear("proj", source="core", reads=(out,), writes=(width,), klass=klass, bias=bias),
    )
