"""Rules by which serving engines choose defaults from device memory, generation and ranks.

Tables of batch sizes, reserved memory, captured graph sizes, all-reduce algorithms and kernel
backends.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """Default batch limits of an engine on devices of one memory size and generation.

    A table is a tuple of rows; the first row that matches the device counts.

    Args:
        below_gib: the device has less memory than this in GiB; 0 = any.
        generation: generation of the device; 0 = any.
        token_budget, max_sequences, largest_captured: as in `Engine`; 0 = not set by memory.
        narrow_captured: the largest captured size where tp is under `narrow_tp`.
    """

    below_gib: float = 0
    generation: int = 0
    token_budget: int = 0
    max_sequences: int = 0
    largest_captured: int = 0
    narrow_captured: int = 0
    narrow_tp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Rule for the bytes that an engine reserves beside weights and KV cache.

    The bytes hold activations, graphs and buffers:

        bytes = fixed + a_chunk max(chunk, least_chunk) + a_captured C + a_device tp pp +
            (a_rank_captured C dpa, and a_rank_large_captured C dpa where C > large_captured, with
            data parallel attention) + a_piece (sizes captured in pieces, or latent_pieces at once),
            at least `least` on a device above `least_above_gib`; + guessing with draft tokens

    C is the largest captured size. `rows`, where there are any, hold fixed and a_device by the
    device's memory instead.

    Args:
        rows: (below GiB, fixed, a_device), 0 = any. All other sizes are bytes.
        digits: decimals to which the share is rounded.
    """

    fixed: int = 0
    a_chunk: int = 0
    least_chunk: int = 0
    a_captured: int = 0
    a_device: int = 0
    a_rank_captured: int = 0
    a_rank_large_captured: int = 0
    large_captured: int = 0
    ranks: int = 0
    a_piece: int = 0
    latent_pieces: int = 0
    least: int = 0
    least_above_gib: float = 0.0
    guessing: int = 0
    rows: tuple[tuple[float, int, int], ...] = ()
    digits: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures:
    """Rule for the batch sizes for which an engine captures CUDA graphs.

    Args:
        ranges: (first, beyond, step), 0 for beyond = up to the largest.
        guessing_ranges: ranges with draft tokens, if they differ.
        largest: the largest size where neither a user nor the device sets it: at most this, and at
            most `a_sequence` times max_sequences (times the tokens of a request with draft tokens,
            if `guessed`), if a_sequence is not 0.
        ends: the largest size is captured even where no range has it.
        doubles_from: this size, and twice it, and so on, below the largest.
    """

    ranges: tuple[tuple[int, int, int], ...]
    guessing_ranges: tuple[tuple[int, int, int], ...] = ()
    largest: int = 0
    a_sequence: int = 0
    guessed: bool = False
    ends: bool = False
    doubles_from: int = 0

    def sizes(self, largest: int, *, guessing: bool = False) -> tuple[int, ...]:
        """Batch sizes with CUDA graphs up to `largest`, rising; `guessing` = with draft tokens."""
        ranges = self.guessing_ranges if guessing and self.guessing_ranges else self.ranges
        captured = {
            size
            for start, stop, step in ranges
            for size in range(start, min(stop or largest + 1, largest + 1), step)
        }
        size = self.doubles_from
        while 0 < size < largest:
            captured.add(size)
            size *= 2
        return tuple(sorted(captured | ({largest} if self.ends and largest > 0 else set())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Rule for the tokens that running requests will still need (SGLang's new-token ratio).

    The estimate is a share of the requests' longest answers. The share is `first` at the start. It
    falls by (first - least) / steps in each iteration of decode down to `least`. After a retraction
    it is (tokens generated + retract_steps x requests) / (sum of longest answers + 1), at most 1.
    Where nothing runs it is `first` again.

    Args:
        clip: longest answer that is counted, in tokens.
        shared: factor on `first` and `least` under data parallel attention.
        kept_tokens: tokens of a request kept free where ends are known.
    """

    first: float
    least: float
    steps: int
    retract_steps: int
    clip: int
    shared: float = 1.0
    kept_tokens: int = 1

    def times(self, factor: float) -> Estimate:
        """Copy the answer-length rule with `first` and `least` x `factor`, at most 1 each."""
        return replace(
            self, first=min(1.0, self.first * factor), least=min(1.0, self.least * factor)
        )


class AllReduceKind(StrEnum):
    """Algorithm of an all-reduce inside a node.

    ONE_SHOT: every rank reads all buffers. TWO_SHOT: reduce-scatter, then all-gather. MULTIMEM: the
    switch adds. LIBRARY: NCCL.
    """

    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"
    MULTIMEM = "multimem"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceRange:
    """Sizes and ranks of all-reduces inside a node for which an engine uses one algorithm.

    At most `most_bytes` and `most_tokens` (0 = any) over `ranks` ranks (0 = any).

    Args:
        kind: the algorithm.
        fused: with the residual and the norm after it in one kernel.
        generation: of the devices (9 Hopper, 10 Blackwell, 0 any).
        least_hidden, below_hidden: width of a token, 0 = any.
    """

    kind: AllReduceKind
    most_bytes: int
    fused: bool = False
    ranks: int = 0
    generation: int = 0
    most_tokens: int = 0
    least_hidden: int = 0
    below_hidden: int = 0

    def takes(
        self, *, ranks: int, generation: int, tokens: int, hidden: int, size_bytes: float
    ) -> bool:
        """True if the engine's own all-reduce covers these ranks, tokens, width and bytes."""
        return (
            self.ranks in (0, ranks)
            and self.generation in (0, generation)
            and size_bytes <= self.most_bytes
            and (self.most_tokens == 0 or tokens <= self.most_tokens)
            and self.least_hidden <= hidden
            and (self.below_hidden == 0 or hidden < self.below_hidden)
        )


LIBRARY: Final = AllReduceRange(kind=AllReduceKind.LIBRARY, most_bytes=1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """A kernel backend of an engine, and the devices and models for which it is the default.

    Choices form a list; the first that matches counts.

    Args:
        generation: of the devices, 0 = any.
        latent, spread: latent attention, experts spread over devices; None = either.
        weights: number formats, empty = any; groups of any size.
        architectures: model architectures, empty = any.
    """

    name: str
    generation: int = 0
    latent: bool | None = None
    spread: bool | None = None
    weights: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()


def size_row(rows: tuple[SizeRow, ...], *, memory_bytes: float, generation: int) -> SizeRow | None:
    """First table row for the generation with a memory bound above `memory_bytes`; else None."""
    fits = (
        row
        for row in rows
        if row.generation in (0, generation)
        and (row.below_gib == 0 or memory_bytes < row.below_gib * GIB)
    )
    return next(fits, None)


def row_largest_captured(row: SizeRow | None, *, tp: int) -> int:
    """Largest captured batch size that the row sets for this tp; 0 = the row sets none."""
    if row is None:
        return 0
    return row.narrow_captured if tp < row.narrow_tp else row.largest_captured


def first_matching_backend(
    choices: tuple[BackendChoice, ...],
    *,
    generation: int,
    latent: bool,
    spread: bool = False,
    weights: str = "",
    architecture: str = "",
) -> str:
    """Name of the first backend whose conditions the device and model meet; empty if none."""
    return next(
        (
            backend.name
            for backend in choices
            if backend.generation in (0, generation)
            and backend.latent in (None, latent)
            and backend.spread in (None, spread)
            and (not backend.weights or weights.partition("-")[0] in backend.weights)
            and (not backend.architectures or architecture in backend.architectures)
        ),
        "",
    )


def all_reduce_range(
    limits: tuple[AllReduceRange, ...],
    *,
    generation: int,
    ranks: int,
    tokens: int,
    hidden: int,
    size_bytes: float,
    fused: bool,
    multimem: bool,
) -> AllReduceRange:
    """First range of an engine that covers an all-reduce inside a node, else NCCL's.

    The range names the algorithm.

    Args:
        hidden: width of a token.
        size_bytes: bytes of a rank's buffer.
        fused, multimem: these algorithms are switched on; they are skipped where they are off.
    """
    for limit in limits:
        is_off = (limit.fused and not fused) or (
            limit.kind is AllReduceKind.MULTIMEM and not multimem
        )
        if not is_off and limit.takes(
            ranks=ranks, generation=generation, tokens=tokens, hidden=hidden, size_bytes=size_bytes
        ):
            return limit
    return LIBRARY


def reserved_bytes(
    rule: Reserve,
    *,
    memory_bytes: float,
    chunk: int,
    largest_captured: int,
    devices: int,
    ranks: int = 1,
    pieces: int = 0,
    latent: bool = False,
    guessing: bool = False,
) -> float:
    """Bytes per device that SGLang's `rule` reserves: fixed, per chunk token, captured size, rank.

    Args:
        chunk: most tokens of an iteration.
        devices: tp x pp.
        ranks: data parallel degree of attention.
        pieces: number of sizes that are captured in pieces.
    """
    fixed, a_device = rule.fixed, rule.a_device
    for below_gib, row_fixed, row_a_device in rule.rows:
        if below_gib == 0 or memory_bytes < below_gib * GIB:
            fixed, a_device = row_fixed, row_a_device
            break
    reserved = (
        fixed
        + rule.a_chunk * max(chunk, rule.least_chunk)
        + rule.a_captured * largest_captured
        + a_device * devices
    )
    if ranks > 1:
        reserved += rule.ranks + rule.a_rank_captured * largest_captured * ranks
        if largest_captured > rule.large_captured:
            reserved += rule.a_rank_large_captured * largest_captured * ranks
    if pieces:
        reserved += rule.latent_pieces if latent and rule.latent_pieces else rule.a_piece * pieces
    if memory_bytes > rule.least_above_gib * GIB:
        reserved = max(reserved, rule.least)
    return reserved + (rule.guessing if guessing else 0)


def unreserved_share(rule: Reserve, *, memory_bytes: float, reserved: float) -> float:
    """Share of a device's memory that is not reserved, rounded as the engine rounds it.

    Memory counts in whole MiB, as the driver's tool prints it.
    """
    total = memory_bytes // MIB * MIB
    return round((total - reserved) / total, rule.digits)
