"""Operators: the named steps of a block, with shapes, parameters and tensors saved for backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter


class OperatorClass(StrEnum):
    """Class of an operator, by which a placement of a plan selects it."""

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
    """Kind of an operator's computation, which selects its cost formula and its execution."""

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
    """Shape of an attention core softmax(QK^T)V: heads, widths, mask, window.

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
    """Number of experts, experts a token, and groups that limit routing.

    `groups`: routing is limited to this many of `of_groups` equal runs of experts (0 = free).
    """

    experts: int
    topk: int
    groups: int = 0
    of_groups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChoice:
    """An indexer's selection of keys for a query: blocks of neighbouring keys, by indexer head.

    Args:
        size: keys of a block.
        count: selected blocks for a query.
        local: number of them that are the query's own block and the nearest before it.
        heads: heads of the indexer; each selects for equally many query heads in turn.
        width: width of a head of the core; as many elements are rotated as in an indexer's head.
    """

    size: int
    count: int
    local: int
    heads: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanShape:
    """Shape of a linear recurrence (Mamba-2, gated linear attention).

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
    """One named step of a block, with its shapes, parameters and saved tensors.

    Sizes are per token: an operator over T tokens reads T x product(reads) and writes T x
    product(writes) elements.

    Args:
        name: unique in the block; also the name of the tensor it produces.
        kind: kind of its computation.
        klass: class by which a placement selects it.
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
        weighed: PERMUTE that multiplies a token by its router weight before the experts, not after.
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
        """The LoRA factors: A, then a B for each extent written; empty if not adapted."""
        return self.parameters[-1 - len(self.writes) :] if self.adapted else ()

    @property
    def rank(self) -> int:
        """Rank of the operator's LoRA adapters; 0 without adapters."""
        return self.adapters[0].extents[-1].size if self.adapted else 0

    @property
    def distances(self) -> Parameter | None:
        """The table of biases by distance bucket and query head; None = scores have none."""
        return self.parameters[-1] if self.biased else None

    @property
    def trains_weights(self) -> bool:
        """True if a parameter other than an adapter is trained."""
        return any(
            p.trainable for p in self.parameters[: len(self.parameters) - len(self.adapters)]
        )

    @property
    def joins_stream(self) -> bool:
        """True if the operator adds a sub-block's output to a layer's residual stream.

        Not if it combines experts, or has no extents.
        """
        stream = self.kind is OperatorKind.RESIDUAL and self.klass is OperatorClass.STREAM
        return stream and bool(self.reads) and not self.name.endswith("combine")

    @property
    def reads_features(self) -> bool:
        """True for the projection of image patches (not tokens) into an embedding."""
        return self.kind is OperatorKind.LINEAR and self.klass is OperatorClass.EMBED

    @property
    def merges(self) -> bool:
        """True if the operator writes or adds another sequence's output at some of its positions.

        For example image tokens over placeholders.
        """
        return (
            self.kind is OperatorKind.PERMUTE
            and self.klass is OperatorClass.STREAM
            and self.experts is None
        )

    @property
    def memory_width(self) -> int:
        """Elements of each memory position that is merged: ceil(input width / `folds`)."""
        return -(-self.reads[0].size // self.folds)

    @property
    def pools(self) -> bool:
        """True if the operator replaces groups of neighbouring tokens by their mean."""
        return self.kind is OperatorKind.ACTIVATION and self.joins > 1

    @property
    def reads_teacher_logits(self) -> bool:
        """True for a loss that also reads a teacher's logits, its last input."""
        return self.kind is OperatorKind.LOSS and len(self.inputs) > 1

    def __hash__(self) -> int:
        # Cheap and lawful, as of blocks: operators are keys of many caches.
        return hash((self.name, self.inputs))

    def reading(self, renamed: Mapping[str, str]) -> Operator:
        """The operator with names in its inputs and kept tensors replaced by `renamed`."""
        inputs, keeps = (
            tuple(renamed.get(name, name) for name in names) for names in (self.inputs, self.keeps)
        )
        return replace(self, inputs=inputs, keeps=keeps)

    def width(self) -> Dim | None:
        """The dim that tensor parallelism splits: heads, ffn or vocab; None if there is none."""
        for extent in (*self.writes, *self.reads):
            if extent.dim in (Dim.HEADS, Dim.FFN, Dim.VOCAB):
                return extent.dim
        return None
