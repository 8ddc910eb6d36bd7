"""Multi-head latent attention in the absorbed form of decoding (DeepSeek-V2, section 2.1.2).

The products that expand the latent are absorbed into queries and outputs.

A query head's part without positions is multiplied with its key matrix, so that it meets the cached
latent itself; what the core makes of latents is multiplied with the value matrix behind it. Per
token that is heads x latent x (nope + value) multiplications, as many as expanding a latent takes,
with the same weights read; the core has one key head of latent + rope elements and values of the
latent's width.
"""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import AttentionShape, OperatorKind
from shardwright.model.ir.tensor_dims import Dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """Sizes of a block's latent attention: query heads, latent width, rotary part of its keys."""

    heads: int
    width: int
    rope: int

    def core(self) -> AttentionShape:
        """The attention core in absorbed form: one key head of latent + rope elements.

        DeepSeek-V3: 128 query heads over one key of 576 and one value of 512 elements.
        """
        return AttentionShape(
            heads=self.heads, kv_heads=1, head_dim=self.width + self.rope, value_dim=self.width
        )


def latent_of(block: Block) -> LatentSizes | None:
    """Heads, latent width and rotary width of a block's latent attention (MLA); None without one.

    It is recognised by its form: the core's keys and values are heads that one product expands from
    a normed part of another product, whose other part (the rotary keys) goes to the core as it is.
    """
    operators = {o.name: o for o in block.operators}
    core = next(
        (
            o
            for o in block.operators
            if o.kind is OperatorKind.ATTENTION and o.attention is not None
        ),
        None,
    )
    down = operators.get("kv_down")
    if core is None or core.attention is None or down is None or len(down.writes) != 2:
        return None
    latent, rope = down.writes
    if latent.dim is Dim.HEADS or "kv_up" not in operators:
        return None
    return LatentSizes(heads=core.attention.heads, width=latent.size, rope=rope.size)
