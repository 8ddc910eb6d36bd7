"""State that a model keeps of the text read so far: per token and per sequence, operator by
operator.
"""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazy_dataclass import dataclass
from shardwright.model.absorbed_latent_attention import latent_of
from shardwright.model.ir.block import TEXT, Block
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent


class Lifetime(StrEnum):
    """The extent of a kept state: one for each token, or one for each sequence."""

    TOKEN = "token"
    SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """State that one operator of a block keeps.

    Args:
        what: in words.
        extents: elements of a token or of a sequence, cut like an operator's own (key heads fewer
            than the parts are copied).
        window: tokens that it keeps at most; 0 = all.
        state: in the format of states, not in that of keys and values.
    """

    operator: str
    what: str
    lifetime: Lifetime
    extents: tuple[Extent, ...]
    window: int = 0
    state: bool = False

    def elements(self, parts: int = 1) -> int:
        """Elements that the device with the most keeps where heads are cut into `parts`: 8 key
        heads of 128 + 128 on 16 devices are 256.
        """
        return sum(
            _largest(extent, parts if extent.dim is Dim.HEADS else 1) for extent in self.extents
        )


def _largest(extent: Extent, parts: int) -> int:
    return -(-extent.runs // parts) * extent.quantum


def lives_in(block: Block) -> tuple[Living, ...]:
    """The state that a block keeps: keys and values (or latent attention's latent and rotary keys,
    one for all heads), a scorer's keys, the state of a scan, the last inputs of a convolution;
    nothing for sequences other than the text.

        8 key heads of 128: 8 x (128 + 128) = 2,048 elements a token and layer. DeepSeek-V3: 512 +
            64 = 576.

    Leaves out keys of cross-attention, which belong to the other sequence.
    """
    if block.sequence != TEXT:
        return ()
    found = (_of(operator, block) for operator in block.operators)
    return tuple(one for one in found if one is not None)


def _of(operator: Operator, block: Block) -> Living | None:
    if (
        operator.kind is OperatorKind.ATTENTION
        and operator.attention is not None
        and not operator.attention.cross
    ):
        return _keys(operator, operator.attention, block)
    if operator.kind is OperatorKind.INDEX and operator.attention is not None:
        one = Extent(dim=Dim.HIDDEN, size=operator.attention.kv_heads * operator.attention.head_dim)
        return Living(
            operator=operator.name,
            what="keys of the scorer",
            lifetime=Lifetime.TOKEN,
            extents=(one,),
        )
    if operator.kind is OperatorKind.SCAN and operator.scan is not None:
        scan, each = operator.scan, operator.scan.head_dim * operator.scan.state
        state = Extent(dim=Dim.HEADS, size=scan.heads * each, quantum=each)
        return Living(
            operator=operator.name,
            what="state",
            lifetime=Lifetime.SEQUENCE,
            extents=(state,),
            state=True,
        )
    if operator.kind is OperatorKind.CONV:
        taps = next(
            p.extents[-1].size
            for p in operator.parameters
            if p.name.startswith(f"{operator.name}.weight")
        )
        kept = tuple(
            Extent(dim=e.dim, size=e.size * (taps - 1), quantum=e.quantum * (taps - 1))
            for e in operator.writes
            if taps > 1
        )
        return Living(
            operator=operator.name,
            what="last inputs",
            lifetime=Lifetime.SEQUENCE,
            extents=kept,
            state=True,
        )
    return None


def _keys(operator: Operator, shape: AttentionShape, block: Block) -> Living:
    latent = latent_of(block)
    if latent is not None:
        kept = (Extent(dim=Dim.HIDDEN, size=latent.width), Extent(dim=Dim.HIDDEN, size=latent.rope))
        return Living(operator=operator.name, what="latent", lifetime=Lifetime.TOKEN, extents=kept)
    each = shape.head_dim + shape.value_dim
    heads = Extent(dim=Dim.HEADS, size=shape.kv_heads * each, quantum=each)
    return Living(
        operator=operator.name,
        what="keys and values",
        lifetime=Lifetime.TOKEN,
        extents=(heads,),
        window=shape.window,
    )
