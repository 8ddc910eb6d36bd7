"""Rules by which an engine sets what nobody set: tables by the device's memory, generation and ranks, and formulas of what is kept free."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shardwright.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """What an engine sets on a device whose memory is less than `below_gib` GiB (0 = any), of `generation` (0 = any): the first that fits.

    Args:
        token_budget, max_sequences, largest_captured: as in `Engine`; 0 = not set by memory. narrow_captured: the largest captured size
            where tp is under `narrow_tp`.
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

        bytes = fixed + a_chunk max(chunk, least_chunk) + a_captured C + a_device tp pp + (a_rank_captured C dpa, and
        a_rank_large_captured C dpa where C > large_captured, with attention of their own) + a_piece (sizes captured in pieces, or
        latent_pieces at once), at least `least` on a device above `least_above_gib`; + guessing where tokens are guessed ahead

    C is the largest captured size. `rows`, where there are any, hold fixed and a_device by the device's memory instead.

    Args:
        All bytes; `rows`: (below GiB, fixed, a_device), 0 = any. digits: the share is rounded to so many.
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
        ranges: (first, beyond, step), 0 for beyond = up to the largest. guessing_ranges: those where tokens are guessed ahead, if they are
            others. largest: where neither a user nor the device says it: at most this, and at most `a_sequence` times max_sequences
            (times the tokens of a request that guesses, if `guessed`), if a_sequence is not 0. ends: the largest size is captured even
            where no range has it. doubles_from: this size, and twice it, and so on, below the largest.
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
        found = {size for first, beyond, step in ranges for size in range(first, min(beyond or largest + 1, largest + 1), step)}
        size = self.doubles_from
        while 0 < size < largest:
            found.add(size)
            size *= 2
        return tuple(sorted(found | ({largest} if self.ends and largest > 0 else set())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What running requests are expected to need still: a share of the answer that they may give at most, `first` at the start.

    The share falls by (first - least) / steps in each iteration of decode down to `least`, and is set anew when requests are sent back: to
    (tokens generated + retract_steps x requests) / (longest answers in all + 1), at most 1. Where nothing runs it is `first` again.

    Args:
        clip: longest answer that is counted. conservative: factor on `first`. kept_tokens: a request, kept free beyond where ends are
            known.
    """

    first: float
    least: float
    steps: int
    retract_steps: int
    clip: int
    conservative: float = 1.0
    kept_tokens: int = 1


class Kind(StrEnum):
    """How ranks add up: FUSED: with the residual and the norm behind it in one kernel. ONE_SHOT: every rank reads all. TWO_SHOT: scattered,
    then gathered. MULTIMEM: the switch adds. LIBRARY: NCCL.
    """

    FUSED = "fused"
    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"
    MULTIMEM = "multimem"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumLimit:
    """Sums of at most `most_bytes` over `ranks` ranks (0 = any) of devices of `generation` (9 Hopper, 10 Blackwell, 0 any) are of this
    kind; `least_bytes`: at least so many.
    """

    kind: Kind
    most_bytes: int
    ranks: int = 0
    generation: int = 0
    least_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend that an engine takes by itself: on devices of `generation` (0 any), for latent attention (None = whatever), for weights of
    a number format (empty = any), for a model's architecture (empty = any). The first that fits.
    """

    name: str
    generation: int = 0
    latent: bool | None = None
    weights: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()


def size_row(rows: tuple[SizeRow, ...], *, memory_bytes: float, generation: int) -> SizeRow | None:
    """The row for a device of so much memory; None where there is none."""
    fits = (row for row in rows if row.generation in (0, generation) and (row.below_gib == 0 or memory_bytes < row.below_gib * GIB))
    return next(fits, None)


def largest_of(row: SizeRow | None, *, tp: int) -> int:
    """The largest captured size that a device's row says; 0 = it says none."""
    if row is None:
        return 0
    return row.narrow_captured if tp < row.narrow_tp else row.largest_captured


def choice(choices: tuple[Choice, ...], *, generation: int, latent: bool, weights: str = "", architecture: str = "") -> str:
    """The name of the first backend that fits; empty where none is known."""
    return next(
        (
            one.name
            for one in choices
            if one.generation in (0, generation)
            and one.latent in (None, latent)
            and (not one.weights or weights in one.weights)
            and (not one.architectures or architecture in one.architectures)
        ),
        "",
    )


def sum_kind(limits: tuple[SumLimit, ...], *, generation: int, ranks: int, size_bytes: float, fused: bool, multimem: bool) -> Kind:
    """How ranks of one node add up a buffer: the first of an engine's limits that fits, else the library.

    Args:
        size_bytes: of a rank's buffer. fused, multimem: whether the engine has those on; both are passed over where it has not.
    """
    off = ({Kind.FUSED} if not fused else set()) | ({Kind.MULTIMEM} if not multimem else set())
    for limit in limits:
        fits = limit.least_bytes <= size_bytes <= limit.most_bytes
        if fits and limit.kind not in off and limit.ranks in (0, ranks) and limit.generation in (0, generation):
            return limit.kind
    return Kind.LIBRARY


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
        chunk: most tokens of an iteration. devices: tp x pp. ranks: with attention of their own; 1 = none has. pieces: sizes that are
            captured in pieces.
    """
    fixed, a_device = rule.fixed, rule.a_device
    for below, row_fixed, row_a_device in rule.rows:
        if below == 0 or memory_bytes < below * GIB:
            fixed, a_device = row_fixed, row_a_device
            break
    kept = fixed + rule.a_chunk * max(chunk, rule.least_chunk) + rule.a_captured * largest_captured + a_device * devices
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
    """The share of a device's memory that is not kept free, rounded as the engine rounds it. Memory counts in whole MiB, as the driver's
    tool prints it.
    """
    total = memory_bytes // MIB * MIB
    return round((total - kept) / total, rule.digits)
