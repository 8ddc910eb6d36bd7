"""Numerical constants of a model that change its values, but neither its work nor its memory."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isqrt
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

QUICK: Final = 1.702
"""Factor in GELU by a sigmoid (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2)."""
ACTIVATIONS: Final = ("silu", "gelu_tanh", "gelu", "quick_gelu", "relu", "relu2")
USUAL: Final = {True: "silu", False: "gelu_tanh"}
"""Gated or not -> activation of most published models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongerRotary:
    """Rotary positions extended for longer contexts by slowing low frequencies (Llama 3, linear).

    A turn that takes more than `trained` / `low` positions is `factor` times slower, one of less
    than `trained` / `high` is as it was, and between the two, in proportion to turns in `trained`
    positions.

    Args:
        factor: above 1.
        trained: positions of the first training.
        low, high: rotations in these positions; both 0: every rotation is slower.

    Source: Llama Team 2024 (arXiv 2407.21783), and the field ``rope_scaling`` of its
    configurations, types ``llama3`` and ``linear``.
    """

    factor: float
    trained: float = 1.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnRotary:
    """YaRN context extension: fast pairs unchanged, slow pairs slowed, a ramp between.

    Pairs that turn more than `fast` times in `trained` positions are unchanged, pairs of less than
    `slow` turns are `factor` times slower, and between the two in proportion to the number of the
    pair.

    Args:
        scale: factor of the rotated elements.
        whole: the numbers of the pairs at `fast` and `slow` turns are rounded outwards.

    Source: Peng et al. 2023 (arXiv 2309.00071), sections 3.2 and 3.4. The paper is in proportion to
    turns; the authors' code, and models trained with it, are in proportion to the number of the
    pair.
    """

    factor: float
    trained: float
    fast: float = 32.0
    slow: float = 1.0
    scale: float = 1.0
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicRotary:
    """Dynamic NTK context extension: the base grows with sequences beyond `trained` positions.

    base' = base (factor length / trained - (factor - 1))^(d / (d - 2)) with d turned elements a
    head.

    Source: Peng et al. 2023 (arXiv 2309.00071), section 3.3.
    """

    factor: float
    trained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRotary:
    """LongRoPE context extension: a slow-down factor for every pair, by sequence length.

    The factors are `short` up to `trained` positions, else `long`.

    Args:
        scale: factor of the rotated elements, for both.

    Source: Ding et al. 2024 (arXiv 2402.13753), section 3.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    trained: float
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalRotary:
    """Rotary positions on a `share` of a head's pairs, at the frequencies of the whole head.

    The other pairs do not rotate.

    Not as with `Settings.rope_share`, element i is turned with i + half of the whole head: of 8
    elements and a share of 0.5, 0 with 4 and 1 with 5.

    Args:
        factor: slow-down of all pairs.

    Source: the field ``rope_parameters`` of Gemma 4's configurations, type ``proportional``.
    """

    share: float
    factor: float = 1.0


Longer = LongerRotary | YarnRotary | DynamicRotary | LongRotary | ProportionalRotary


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """Input of images into a text: placeholder token, patches, and merging into image tokens.

    Args:
        token: placeholder token of the text: its k-th place in a sample gets the k-th image token.
        patch: channels, rows and columns of pixels of a patch, in the order of the elements that
            its projection reads.
        frames: frames of a patch, after its channels; 0: none. An image is as many equal frames.
        first: image tokens before the first that is written (a class token that only the tower
            reads: 1).
        block: rows and columns of patches that become one image token. A tower's patches stand
            block by block, and row by row in a block.
        in_blocks: so do those of the files of patches that the model's own processor makes; else
            row by row.
        channels_last: the elements of a patch are its pixels' channels, pixel by pixel.
        spread: pixels of 0 to 1 are read as of -1 to 1.
    """

    token: int
    patch: tuple[int, int, int]
    frames: int = 0
    first: int = 0
    block: tuple[int, int] = (1, 1)
    in_blocks: bool = True
    channels_last: bool = False
    spread: bool = False

    @property
    def pixels(self) -> tuple[int, ...]:
        """Patch dims: (channels, frames if any, rows, columns), or (rows, columns, channels)."""
        if self.channels_last:
            return (*self.patch[1:], self.patch[0])
        return (self.patch[0], *((self.frames,) if self.frames else ()), *self.patch[1:])

    def written(self, positions: int) -> int:
        """Image tokens in the text: (tower positions - `first`) / patches of a block."""
        return (positions - self.first) // (self.block[0] * self.block[1])

    def grid(self, patches: int) -> tuple[int, int] | None:
        """(rows, columns) of patches of a square image; None if not square or blocks do not fit."""
        side = isqrt(patches)
        return (
            (side, side)
            if side * side == patches and not any(side % size for size in self.block)
            else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRotary:
    """Rotary positions of image patches: a pair of elements rotates by the patch's row or column.

    Args:
        axes: axes of the equal parts of a head's pairs: 0 = rows, 1 = columns, 2 = frames; an
            image is the first frame. Pair k of a part turns at base^(-k / pairs of the part);
            pairs that are left over do not turn.
        in_turns: parts lie in turns, pair by pair; else one behind the other.
        apart: each has as large a part of a head's elements to itself, of which its pairs are
            halves.

    Source: of Kimi-VL's tower, Kimi Team 2025 (arXiv 2504.07491), section 2.1.
    """

    axes: tuple[int, ...] = (0, 1)
    in_turns: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRotary:
    """Rotary positions of a text with images: pairs rotate by a token's time, row or column.

    Args:
        rows, columns: number of pairs that rotate by rows and by columns: of every three pairs
            the second and the third, from the first on; all others rotate by time.

    Source: Qwen Team 2025, Qwen3-VL (arXiv 2511.21631), section 2, and the field ``mrope_section``
    of its configurations.
    """

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionGrid:
    """A grid of learned positions that is interpolated to an image's grid of patches.

    Args:
        rows, columns: size of the table.
        cubic: cubic convolution of 4 x 4 rows (else bilinear between 2 x 2).
        corners: align the corners of both grids; else their edges.

    Source of the cubic form: Keys 1981, Cubic convolution interpolation for digital image
    processing, with a = -0.75.
    """

    rows: int
    columns: int
    cubic: bool = False
    corners: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns): dims of the position table in weight files, before its width."""
        return self.rows, self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionAxes:
    """Two tables of learned positions: a patch adds a row by column and a row by its row."""

    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """(2, rows): dims of the position table in weight files, before a position's width."""
        return 2, self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Numerical constants of a model's operators, other than sizes and parameters.

    Args:
        rope_base: base of rotary positions.
        longer: their context extension; None = none.
        rope_share: of a head's width, the first elements of which are turned; not of latent
            attention.
        rope_pairs: published weights of latent attention have turned elements as pairs.
        local_rope_base: of layers whose queries see a window, which then are not made longer; 0:
            they turn as all do.
        first_position: row of a table of learned positions that the first token reads.
        eps: epsilon of norms.
        score_factor: factor of attention scores, besides 1 / sqrt(head width).
        plain_scores: attention scores without 1 / sqrt(head width).
        norms_centred: norms of the stream take the mean away even where they have no bias.
        embed_factor: factor of the embedding's rows, not of the head that is tied to it.
        residual_factor: factor of sub-block outputs before the residual sum.
        logits_factor: factor of logits.
        logits_cap: bound of logits x behind that, cap tanh(x / cap); 0 = none.
        step_limits: bounds of the time steps of a scan with heads (Mamba-2).
        gate_limit: bound of both halves of a clamped gate.
        gate_slope: slope of the sigmoid in a clamped gate.
        activation: activation of feed-forwards, a name of `ACTIVATIONS`; empty: the usual one
            (`USUAL`).
        shares_add_up: the router weights of a token's experts are normalized to add up to one.
        share_factor: factor of router weights.
        sigmoid_scores: scores of experts are sigmoids, whether or not their choice is corrected.
        bias_reach: distance from which on all keys of a direction have one learned bias
            (`Operator.distances`).
        temper: (positions, strength) of queries that grow with their position p: 1 + strength ln(1
            + floor((p + 1) / positions)).
        padding_row: of the table of tokens, the row that gets no gradient from lookup and begins as
            zeros; None = every row learns.
        load_balancing: coefficient of the load-balancing loss of all routers, which training adds;
            0 = none.
        router_noise: in training, a router and its experts read their input times random numbers
            from 1 - this to 1 + this; 0 = as it is.
        dropout: (field, probability) of what the published class drops in training, which no step
            here does.
        other_losses: (field, coefficient) of losses of routers that the configuration names and
            neither its class nor a step adds.
        image: of a model whose tower's numbers are known; None = it reads no images, or only its
            sizes are known.
        turns: of queries and keys of a tower, or of a text with images; None = by the position in
            the sequence.
        stretched: a tower's table of positions, or tables; None = it has a row for every position.
        own: of blocks that compute with other numbers, by name (an image tower, its projector), and
            of operators of a block.
    """

    rope_base: float = 10000.0
    longer: Longer | None = None
    eps: float = 1e-5
    rope_share: float = 1.0
    rope_pairs: bool = True
    local_rope_base: float = 0.0
    first_position: int = 0
    score_factor: float = 1.0
    plain_scores: bool = False
    norms_centred: bool = False
    embed_factor: float = 1.0
    residual_factor: float = 1.0
    logits_factor: float = 1.0
    logits_cap: float = 0.0
    step_limits: tuple[float, float] = (0.0, inf)
    gate_limit: float = 7.0
    gate_slope: float = QUICK
    activation: str = ""
    shares_add_up: bool = True
    share_factor: float = 1.0
    sigmoid_scores: bool = False
    bias_reach: int = 128
    temper: tuple[float, float] = (8192.0, 0.1)
    padding_row: int | None = None
    load_balancing: float = 0.0
    router_noise: float = 0.0
    dropout: tuple[tuple[str, float], ...] = ()
    other_losses: tuple[tuple[str, float], ...] = ()
    image: ImageInput | None = None
    turns: GridRotary | TextRotary | None = None
    stretched: PositionGrid | PositionAxes | None = None
    own: tuple[tuple[str, Settings], ...] = ()

    def of_block(self, name: str) -> Settings:
        """Settings in `own` for block or operator `name`, or for its dotted prefix; else `self`."""
        return next(
            (
                settings
                for block, settings in self.own
                if name == block or name.startswith(f"{block}.")
            ),
            self,
        )

    def of_layers(self, *, local: bool) -> Settings:
        """Settings of windowed layers if `local` and they have a rotary base; else `self`."""
        return (
            replace(self, rope_base=self.local_rope_base, longer=None, local_rope_base=0.0)
            if local and self.local_rope_base
            else self
        )
