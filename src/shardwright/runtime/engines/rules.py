"""Rules by which an engine sets what nobody set: tables by the device's memory, generation and
ranks, and formulas of what is kept free.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from shardwright.lazy_dataclass import dataclass
from shardwright.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """What an engine sets on a device whose memory is less than `below_gib` GiB (0 = any), of
    `generation` (0 = any): the first that fits.

    Args:
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
    """Memory that an engine keeps free of weights and cache: for activations, graphs and buffers.

        bytes = fixed + a_chunk max(chunk, least_chunk) + a_captured C + a_device tp pp +
        (a_rank_captured C dpa, and a_rank_large_captured C dpa where C > large_captured, with
        attention of their own) + a_piece (sizes captured in pieces, or latent_pieces at once), at
        least `least` on a device above `least_above_gib`; + guessing where tokens are guessed ahead

    C is the largest captured size. `rows`, where there are any, hold fixed and a_device by the
    device's memory instead.

    Args:
        All bytes; `rows`: (below GiB, fixed, a_device), 0 = any.
        digits: the share is rounded to so many.
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
    """How sizes of captured graphs are laid.

    Args:
        ranges: (first, beyond, step), 0 for beyond = up to the largest.
        guessing_ranges: those where tokens are guessed ahead, if they are others.
        largest: where neither a user nor the device says it: at most this, and at most `a_sequence`
            times max_sequences (times the tokens of a request that guesses, if `guessed`), if
            a_sequence is not 0.
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
        """All sizes up to `largest`, rising."""
        ranges = self.guessing_ranges if guessing and self.guessing_ranges else self.ranges
        found = {
            size
            for first, beyond, step in ranges
            for size in range(first, min(beyond or largest + 1, largest + 1), step)
        }
        size = self.doubles_from
        while 0 < size < largest:
            found.add(size)
            size *= 2
        return tuple(sorted(found | ({largest} if self.ends and largest > 0 else set())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What running requests are expected to need still: a share of the answer that they may give at
    most, `first` at the start.

    The share falls by (first - least) / steps in each iteration of decode down to `least`, and is
    set anew when requests are sent back: to (tokens generated + retract_steps x requests) /
    (longest answers in all + 1), at most 1. Where nothing runs it is `first` again.

    Args:
        clip: longest answer that is counted.
        shared: factor on `first` and `least` where ranks have attention of their own.
        kept_tokens: a request, kept free beyond where ends are known.
    """

    first: float
    least: float
    steps: int
    retract_steps: int
    clip: int
    shared: float = 1.0
    kept_tokens: int = 1

    def times(self, factor: float) -> Estimate:
        """With `first` and `least` times a factor, at most 1."""
        return replace(
            self, first=min(1.0, self.first * factor), least=min(1.0, self.least * factor)
        )


class Kind(StrEnum):
    """How ranks add up: ONE_SHOT: every rank reads all. TWO_SHOT: scattered, then gathered.
    MULTIMEM: the switch adds. LIBRARY: NCCL.
    """

    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"
    MULTIMEM = "multimem"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumLimit:
    """Sums that are of this kind: of at most `most_bytes` and `most_tokens` (0 = any) over `ranks`
    ranks (0 = any).

    Args:
        kind: see there.
        fused: with the residual and the norm behind it in one kernel.
        generation: of the devices (9 Hopper, 10 Blackwell, 0 any).
        least_hidden, below_hidden: width of a token, 0 = any.
    """

    kind: Kind
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
        """Whether a sum is within it."""
        return (
            self.ranks in (0, ranks)
            and self.generation in (0, generation)
            and size_bytes <= self.most_bytes
            and (self.most_tokens == 0 or tokens <= self.most_tokens)
            and self.least_hidden <= hidden
            and (self.below_hidden == 0 or hidden < self.below_hidden)
        )


LIBRARY: Final = SumLimit(kind=Kind.LIBRARY, most_bytes=1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend that an engine takes by itself: on devices of `generation` (0 any), for latent
    attention, and where experts are spread over devices (None = whatever), for weights of a number
    format (empty = any; in groups of whatever size), for a model's architecture (empty = any). The
    first that fits.
    """

    name: str
    generation: int = 0
    latent: bool | None = None
    spread: bool | None = None
    weights: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()


def size_row(rows: tuple[SizeRow, ...], *, memory_bytes: float, generation: int) -> SizeRow | None:
    """The row for a device of so much memory; None where there is none."""
    fits = (
        row
        for row in rows
        if row.generation in (0, generation)
        and (row.below_gib == 0 or memory_bytes < row.below_gib * GIB)
    )
    return next(fits, None)


def largest_of(row: SizeRow | None, *, tp: int) -> int:
    """The largest captured size that a device's row says; 0 = it says none."""
    if row is None:
        return 0
    return row.narrow_captured if tp < row.narrow_tp else row.largest_captured


def choice(
    choices: tuple[Choice, ...],
    *,
    generation: int,
    latent: bool,
    spread: bool = False,
    weights: str = "",
    architecture: str = "",
) -> str:
    """The name of the first backend that fits; empty where none is known."""
    return next(
        (
            one.name
            for one in choices
            if one.generation in (0, generation)
            and one.latent in (None, latent)
            and one.spread in (None, spread)
            and (not one.weights or weights.partition("-")[0] in one.weights)
            and (not one.architectures or architecture in one.architectures)
        ),
        "",
    )


def sum_of(
    limits: tuple[SumLimit, ...],
    *,
    generation: int,
    ranks: int,
    tokens: int,
    hidden: int,
    size_bytes: float,
    fused: bool,
    multimem: bool,
) -> SumLimit:
    """How ranks of one node add up a buffer of tokens: the first of an engine's limits that takes
    it, else the library.

    Args:
        hidden: width of a token.
        size_bytes: of a rank's buffer.
        fused, multimem: whether those are on; they are passed over where they are not.
    """
    for limit in limits:
        is_off = (limit.fused and not fused) or (limit.kind is Kind.MULTIMEM and not multimem)
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
    """Bytes that `rule` keeps free of weights and cache on one device.

    Args:
        chunk: most tokens of an iteration.
        devices: tp x pp.
        ranks: with attention of their own; 1 = none has.
        pieces: sizes that are captured in pieces.
    """
    fixed, a_device = rule.fixed, rule.a_device
    for below, row_fixed, row_a_device in rule.rows:
        if below == 0 or memory_bytes < below * GIB:
            fixed, a_device = row_fixed, row_a_device
            break
    kept = (
        fixed
        + rule.a_chunk * max(chunk, rule.least_chunk)
        + rule.a_captured * largest_captured
        + a_device * devices
    )
    if ranks > 1:
        kept += rule.ranks + rule.a_rank_captured * largest_captured * ranks
        if largest_captured > rule.large_captured:
            kept += rule.a_rank_large_captured * largest_captured * ranks
    if pieces:
        kept += rule.latent_pieces if latent and rule.latent_pieces else rule.a_piece * pieces
    if memory_bytes > rule.least_above_gib * GIB:
        kept = max(kept, rule.least)
    return kept + (rule.guessing if guessing else 0)


def share(rule: Reserve, *, memory_bytes: float, kept: float) -> float:
    """The share of a device's memory that is not kept free, rounded as the engine rounds it. Memory
    counts in whole MiB, as the driver's tool prints it.
    """
    total = memory_bytes // MIB * MIB
    return round((total - kept) / total, rule.digits)
