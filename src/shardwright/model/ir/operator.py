"""Operators: the named steps of a block, each with its dims, its parameters and what it keeps for
backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter


class OperatorClass(StrEnum):
    """Class of an operator, by which a placement selects it (DESIGN section 2)."""

    STREAM = "stream"
    ATTN = "attn"
    CORE = "core"
    MLP = "mlp"
    ROUTER = "router"
    EXPERTS = "experts"
    SHARED = "shared"
    SSM = "ssm"
    EMBED = "embed"
    HEAD = "head"


class OperatorKind(StrEnum):
    """Kind of an operator's computation, which decides its cost formula and its executor
    routine.
    """

    LINEAR = "linear"
    GROUPED_LINEAR = "grouped-linear"
    NORM = "norm"
    ROTARY = "rotary"
    ACTIVATION = "activation"
    RESIDUAL = "residual"
    ATTENTION = "attention"
    ROUTE = "route"
    PERMUTE = "permute"
    EMBEDDING = "embedding"
    LOSS = "loss"
    CONV = "conv"
    SCAN = "scan"
    INDEX = "index"


class Mask(StrEnum):
    """The keys that a query sees."""

    CAUSAL = "causal"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The core softmax(QK^T)V of one layer.

    Args:
        heads: query heads.
        kv_heads: key/value heads (equal for MHA; in MLA's expanded form equal to heads).
        head_dim: width of a query and key head.
        value_dim: width of a value head.
        window: keys a query sees at most (sliding window); 0 = all.
        selected: keys chosen by a sparse indexer per query; 0 = all.
        cross: keys come from another sequence (encoder-decoder).
        chunked: `window` is a block of positions that attends only inside itself, not a window that
            slides.
        soft_cap: scores pass through cap x tanh(score / cap); 0 = no cap. Changes which kernels can
            be used, not the sizes.
        sinks: every query head has a learned score that joins the softmax's denominator.
        alibi: scores get a bias linear in the distance (no parameters).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    mask: Mask = Mask.CAUSAL
    window: int = 0
    selected: int = 0
    cross: bool = False
    chunked: bool = False
    soft_cap: float = 0.0
    sinks: bool = False
    alibi: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """A mixture of experts: how many, how many a token visits. `groups`: routing limited to this
    many of `of_groups` equal runs of experts (0 = free).
    """

    experts: int
    topk: int
    groups: int = 0
    of_groups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChoice:
    """An indexer's selection of keys for a query: blocks of neighbours, for each of its heads other
    blocks.

    Args:
        size: keys of a block.
        count: blocks a query.
        local: of them, its own and the nearest before it, whatever they score.
        heads: of the indexer; each selects for equally many query heads in turn.
        width: of a head of the core, of which as many elements are turned as of an indexer's.
    """

    size: int
    count: int
    local: int
    heads: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanShape:
    """A linear recurrence (Mamba-2, gated linear attention).

    Args:
        heads, head_dim, state: state is heads x head_dim x state elements per sequence.
        groups: B and C are shared by heads / groups heads.
        chunk: tokens per chunk of the chunked form (its matmuls are chunk x chunk).
        delta: writes replace what the state holds under a key (delta rule): a triangular solve of
            chunk x chunk a head is added.
    """

    heads: int
    head_dim: int
    state: int
    groups: int = 1
    chunk: int = 128
    delta: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One named step of a block.

    Sizes are per token: an operator over T tokens reads T x product(reads) and writes T x
    product(writes) elements.

    Args:
        name: unique in the block; also the name of the tensor it produces.
        kind: how it computes.
        klass: which placement rules it.
        inputs: names of operators of the same block, or ``input`` (the block's input), or
            ``memory`` (another sequence).
        reads: extents of its contracted dim per token (LINEAR: the k dim); for others its per-token
            input.
        writes: extents of what it produces per token.
        parameters: its weights.
        keeps: tensors that backward needs (names of operators or ``input``); a tensor kept by
            several is kept once.
        experts: set on operators of a mixture of experts; tokens are then routed tokens (T x topk /
            experts an expert).
        attention, scan: shape of a core.
        gated: ACTIVATION that multiplies two halves (SwiGLU, GeGLU): reads twice what it writes.
        clamped: both halves of a gate are limited before they are multiplied.
        adapted: a product of two factors is added to its weights (see `adapters`).
        groups: NORM over equal parts of its width, each with a mean square of its own; its gain is
            as wide as all of them.
        local: ROTARY of a layer whose queries see a window of keys, which may turn at rates of
            their own.
        tempered: ATTENTION whose queries grow with their position (`Settings.temper`).
        biased: ATTENTION whose scores get a learned bias by distance (`distances`).
        sees_images: ATTENTION of a text whose tokens of one image see each other, later ones too.
        factors: LINEAR: what each extent that it writes is multiplied with, its bias too; () =
            nothing.
        weighed: PERMUTE of experts that work on a token times what they count for it, not counted
            behind them.
        joins: LINEAR or NORM that reads the tensors of so many neighbours of its sequence, side by
            side, as one token's; ACTIVATION that takes their mean.
        folds: its tokens are of so many neighbours of the sequence each, over which the elements
            that it writes, and reads but where it joins, lie in turns: with n neighbours, element e
            of a token lies at its neighbour e mod n, zeros behind the last ones. Of PERMUTE its
            memory's tokens.
        choice: INDEX that selects blocks of keys, and ATTENTION over them; None: single keys, which
            are not executed.
        adds: PERMUTE that adds what another sequence made at places of its own, not written over
            them (see `merges`).
    """

    name: str
    kind: OperatorKind
    klass: OperatorClass
    inputs: tuple[str, ...]
    writes: tuple[Extent, ...]
    reads: tuple[Extent, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    keeps: tuple[str, ...] = ()
    attention: AttentionShape | None = None
    experts: ExpertShape | None = None
    scan: ScanShape | None = None
    gated: bool = False
    clamped: bool = False
    adapted: bool = False
    # As a model's settings, it changes what is computed and no price: digests of problems are made
    # of what is printed.
    groups: int = field(default=1, repr=False)
    local: bool = field(default=False, repr=False)
    tempered: bool = field(default=False, repr=False)
    biased: bool = field(default=False, repr=False)
    weighed: bool = field(default=False, repr=False)
    joins: int = field(default=1, repr=False)
    folds: int = field(default=1, repr=False)
    adds: bool = field(default=False, repr=False)
    sees_images: bool = field(default=False, repr=False)
    choice: BlockChoice | None = field(default=None, repr=False)
    factors: tuple[float, ...] = field(default=(), repr=False)

    @property
    def adapters(self) -> tuple[Parameter, ...]:
        """The factors of what is added to the weights: A, and a B for each extent written; its last
        parameters.
        """
        return self.parameters[-1 - len(self.writes) :] if self.adapted else ()

    @property
    def rank(self) -> int:
        """Of the product that is added to its weights; 0 = none is."""
        return self.adapters[0].extents[-1].size if self.adapted else 0

    @property
    def distances(self) -> Parameter | None:
        """The table of a bias for each bucket of distances and query head, its last parameter; None
        = scores have none.
        """
        return self.parameters[-1] if self.biased else None

    @property
    def trains_own(self) -> bool:
        """Some parameter that is no adapter has a gradient."""
        return any(
            p.trainable for p in self.parameters[: len(self.parameters) - len(self.adapters)]
        )

    @property
    def joins_stream(self) -> bool:
        """True if the operator adds a sub-block's output to a layer's stream. An operator that
        combines experts works inside one, and an operator without extents only stands for it.
        """
        stream = self.kind is OperatorKind.RESIDUAL and self.klass is OperatorClass.STREAM
        return stream and bool(self.reads) and not self.name.endswith("combine")

    @property
    def reads_features(self) -> bool:
        """A projection of data that are no tokens (patches of images)."""
        return self.kind is OperatorKind.LINEAR and self.klass is OperatorClass.EMBED

    @property
    def merges(self) -> bool:
        """True if the operator writes another sequence's output over places of its own (image
        tokens over placeholders), or `adds` it there.
        """
        return (
            self.kind is OperatorKind.PERMUTE
            and self.klass is OperatorClass.STREAM
            and self.experts is None
        )

    @property
    def memory_width(self) -> int:
        """Elements that a position of the memory has which it merges (`merges`)."""
        return -(-self.reads[0].size // self.folds)

    @property
    def pools(self) -> bool:
        """True if the operator takes the mean of neighbours."""
        return self.kind is OperatorKind.ACTIVATION and self.joins > 1

    @property
    def is_taught(self) -> bool:
        """A loss that reads a teacher's logits, its last input, beside the model's own."""
        return self.kind is OperatorKind.LOSS and len(self.inputs) > 1

    def __hash__(self) -> int:
        # Cheap and lawful, as of blocks: operators are keys of many caches.
        return hash((self.name, self.inputs))

    def reading(self, renamed: Mapping[str, str]) -> Operator:
        """The same operator with other tensors in the place of those that `renamed` has."""
        inputs, keeps = (
            tuple(renamed.get(name, name) for name in names) for names in (self.inputs, self.keeps)
        )
        return replace(self, inputs=inputs, keeps=keeps)

    def width(self) -> Dim | None:
        """The dim that a split on `t` cuts: heads, ffn, vocab or experts' ffn; None if the operator
        has no width of its own.
        """
        for extent in (*self.writes, *self.reads):
            if extent.dim in (Dim.HEADS, Dim.FFN, Dim.VOCAB):
                return extent.dim
        return None
