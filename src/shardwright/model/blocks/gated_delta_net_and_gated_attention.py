"""Linear attention with a gated delta rule, and gated softmax attention (Qwen3-Next).

Gated delta rule: Yang et al. 2024, arXiv 2412.06464.

Operators: ``in_proj conv scan gate_norm gate out_proj``, all of class ssm; heads are what a split
on t cuts. The recurrence is a SCAN whose heads are the value heads and whose state is key width x
value width a head.
"""

from __future__ import annotations

from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    core_operator,
    head_extents,
    hidden_extent,
    linear,
    qk_norm_operator,
    rotary_operator,
)
from shardwright.model.blocks.mamba import (
    MAX_KERNEL,
    conv_operator,
    gate_operator,
    heads_extent,
    width_norm,
)
from shardwright.model.ir.config_json_field_access import MAX_HEAD_DIM, MAX_HEADS, Fields
from shardwright.model.ir.operator import (
    AttentionShape,
    Operator,
    OperatorClass,
    OperatorKind,
    ScanShape,
)
from shardwright.model.ir.tensor_dims import Parameter

DELTA_CHUNK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Sizes of a gated delta net: heads, head widths and convolution kernel.

    Args:
        key_heads, value_heads: queries and keys have `key_heads` heads, each serving value_heads /
            key_heads value heads.
        key_dim, value_dim: width of a head.
        kernel: taps of the convolution over q, k and v.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    def scan(self) -> ScanShape:
        """Shape of the recurrence, in chunks of 64 tokens as in public kernels."""
        return ScanShape(
            heads=self.value_heads,
            head_dim=self.value_dim,
            state=self.key_dim,
            groups=self.key_heads,
            chunk=DELTA_CHUNK,
            delta=True,
        )


def delta_shape(fields: Fields) -> DeltaShape:
    """Read the sizes of a gated delta net in Qwen's spelling (``linear_*``)."""
    key_heads = fields.integer("linear_num_key_heads", maximum=MAX_HEADS)
    value_heads = fields.integer("linear_num_value_heads", maximum=MAX_HEADS)
    if value_heads % key_heads:
        fields.fail(
            f"{fields.path}linear_num_key_heads = {key_heads} does not divide the {value_heads}"
            " value heads",
            hint="choose a divisor of linear_num_value_heads",
        )
    return DeltaShape(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.integer("linear_key_head_dim", maximum=MAX_HEAD_DIM),
        value_dim=fields.integer("linear_value_head_dim", maximum=MAX_HEAD_DIM),
        kernel=fields.integer("linear_conv_kernel_dim", maximum=MAX_KERNEL),
    )


def delta_operators(*, hidden: int, shape: DeltaShape) -> tuple[Operator, ...]:
    """Operators of a gated delta net from the normed input (``norm1``) to the projected output.

    ``in_proj`` writes q, k, v, the output gate z, the write strength b and the decay a: one GEMM of
    the sum of their widths. The norm's gain is one value head wide.
    """
    klass = OperatorClass.SSM
    key = heads_extent(shape.key_heads, width=shape.key_dim)
    value = heads_extent(shape.value_heads, width=shape.value_dim)
    steps, width = heads_extent(shape.value_heads), hidden_extent(hidden)
    scanned = ("conv", "in_proj")
    return (
        linear(
            "in_proj",
            source="norm1",
            reads=(width,),
            writes=(key, key, value, value, steps, steps),
            klass=klass,
        ),
        conv_operator(channels=(key, key, value), kernel=shape.kernel, bias=False),
        Operator(
            name="scan",
            kind=OperatorKind.SCAN,
            klass=klass,
            inputs=scanned,
            reads=(key, key, value, steps, steps),
            writes=(value,),
            parameters=tuple(
                Parameter(name=f"scan.{n}", extents=(steps,)) for n in ("a_log", "dt_bias")
            ),
            keeps=scanned,
            scan=shape.scan(),
        ),
        width_norm(source="scan", width=value, gain=hidden_extent(shape.value_dim)),
        gate_operator(inputs=("gate_norm", "in_proj"), width=value),
        linear("out_proj", source="gate", reads=(value,), writes=(width,), klass=klass),
    )


def gated_attention_operators(
    *, hidden: int, shape: AttentionShape, bias: bool = False, gate_width: int | None = None
) -> tuple[Operator, ...]:
    """Softmax attention from ``norm1``, with the core's output times sigmoid(gate) before ``proj``.

    Operators: ``qkv qk_norm rotary core gate proj``.

    Args:
        gate_width: gate elements a head: None = as wide as a value head (Qwen3-Next), 1 = one score
            a head (Step-3.5).

    The GEMM of q, k and v computes the gate too.
    """
    query, key, value, out = head_extents(shape)
    width, klass = hidden_extent(hidden), OperatorClass.ATTN
    scores = out if gate_width is None else heads_extent(shape.heads, width=gate_width)
    gated = ("core", "qkv")
    return (
        linear(
            "qkv",
            source="norm1",
            reads=(width,),
            writes=(query, key, value, scores),
            klass=klass,
            bias=bias,
        ),
        qk_norm_operator(source="qkv", shape=shape, width=QkNorm.HEAD),
        rotary_operator(inputs=("qk_norm",), shape=shape),
        core_operator("core", source="rotary", shape=shape),
        Operator(
            name="gate",
            kind=OperatorKind.ACTIVATION,
            klass=klass,
            inputs=gated,
            reads=(out, scores),
            writes=(out,),
            keeps=gated,
            gated=gate_width is None,
        ),
        linear("proj", source="gate", reads=(out,), writes=(width,), klass=klass, bias=bias),
    )
