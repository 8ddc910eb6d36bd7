"""State kept while decoding: KV cache a token, and recurrent state a sequence, by operator."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.absorbed_latent_attention_sizes import latent_of
from shardwright.model.ir.block import TEXT, Block
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent


class Lifetime(StrEnum):
    """Extent of a kept state: one for each token, or one for each sequence."""

    TOKEN = "token"
    SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeState:
    """State that an operator keeps while decoding: its kind, size and lifetime.

    Args:
        what: name of the state.
        extents: elements of a token or of a sequence, cut like an operator's own (key heads fewer
            than the parts are copied).
        window: largest number of tokens kept; 0 = all.
        state: True if stored in the number format of states, not of keys and values.
    """

    operator: str
    what: str
    lifetime: Lifetime
    extents: tuple[Extent, ...]
    window: int = 0
    state: bool = False

    def elements(self, parts: int = 1) -> int:
        """State elements a token or sequence on the fullest device: heads in `parts`, others whole.

        8 key heads of 128 + 128 elements on 16 devices are 256.
        """
        return sum(
            _largest_part_elements(extent, parts if extent.dim is Dim.HEADS else 1)
            for extent in self.extents
        )


def _largest_part_elements(extent: Extent, parts: int) -> int:
    """Elements of an extent's largest share: ceil(runs / `parts`) runs of `quantum` elements."""
    return -(-extent.runs // parts) * extent.quantum


def decode_states(block: Block) -> tuple[DecodeState, ...]:
    """States that text decoding keeps (KV cache, latent, scan, conv); () for another sequence.

    Also an indexer's keys.

    There is nothing for sequences other than the text.

        8 key heads of 128: 8 x (128 + 128) = 2,048 elements a token and layer. DeepSeek-V3: 512 +
            64 = 576.

    Leaves out keys of cross-attention, which belong to the other sequence.
    """
    if block.sequence != TEXT:
        return ()
    states = (_state_of_operator(operator, block) for operator in block.operators)
    return tuple(state for state in states if state is not None)


def _state_of_operator(operator: Operator, block: Block) -> DecodeState | None:
    """The decode state of an attention core, indexer, scan or conv; None for other operators."""
    if (
        operator.kind is OperatorKind.ATTENTION
        and operator.attention is not None
        and not operator.attention.cross
    ):
        return _attention_state(operator, operator.attention, block)
    if operator.kind is OperatorKind.INDEX and operator.attention is not None:
        scorer_keys = Extent(
            dim=Dim.HIDDEN, size=operator.attention.kv_heads * operator.attention.head_dim
        )
        return DecodeState(
            operator=operator.name,
            what="keys of the scorer",
            lifetime=Lifetime.TOKEN,
            extents=(scorer_keys,),
        )
    if operator.kind is OperatorKind.SCAN and operator.scan is not None:
        scan, head_state = operator.scan, operator.scan.head_dim * operator.scan.state
        state = Extent(dim=Dim.HEADS, size=scan.heads * head_state, quantum=head_state)
        return DecodeState(
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
        return DecodeState(
            operator=operator.name,
            what="last inputs",
            lifetime=Lifetime.SEQUENCE,
            extents=kept,
            state=True,
        )
    return None


def _attention_state(operator: Operator, shape: AttentionShape, block: Block) -> DecodeState:
    """State of an attention core: keys and values, or the latent of latent attention."""
    latent = latent_of(block)
    if latent is not None:
        kept = (Extent(dim=Dim.HIDDEN, size=latent.width), Extent(dim=Dim.HIDDEN, size=latent.rope))
        return DecodeState(
            operator=operator.name, what="latent", lifetime=Lifetime.TOKEN, extents=kept
        )
    head_elements = shape.head_dim + shape.value_dim
    heads = Extent(dim=Dim.HEADS, size=shape.kv_heads * head_elements, quantum=head_elements)
    return DecodeState(
        operator=operator.name,
        what="keys and values",
        lifetime=Lifetime.TOKEN,
        extents=(heads,),
        window=shape.window,
    )
