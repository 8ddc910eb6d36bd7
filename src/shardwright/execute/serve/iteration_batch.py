"""The batch of an iteration: tokens of requests that follow their cached tokens, and their rows in
one batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`tokens` of a request, from position `past` on; all before are cached. A request that decodes
    has one token.
    """

    request: int
    tokens: int
    past: int

    def __post_init__(self) -> None:
        if self.request < 0 or self.tokens < 1 or self.past < 0:
            raise ValueError(f"{self.tokens} tokens of request {self.request} behind {self.past}")

    @property
    def end(self) -> int:
        """Positions that are cached behind it."""
        return self.past + self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """An iteration as rows: each token is a sample of one position. Ranks with attention of their
    own have equal runs of rows.

    Args:
        parts: (first row, part).
        count: of all rows; those of no part are padding, and whatever they give is dropped.
    """

    parts: tuple[tuple[int, Part], ...]
    count: int


def rows_of(ranks: Sequence[Sequence[Part]], *, sizes: Sequence[int] = ()) -> Rows:
    """Rows of an iteration of ranks in lockstep: each is padded to the busiest one's tokens, and
    those to the next of `sizes`.

    Args:
        ranks: parts of each.
        sizes: rising numbers of tokens a rank, as captured graphs have them; above the last nothing
            is padded.
    """
    most = max(1, *(sum(part.tokens for part in parts) for parts in ranks)) if ranks else 1
    width = next((size for size in sizes if size >= most), most)
    found: list[tuple[int, Part]] = []
    for rank, parts in enumerate(ranks):
        row = rank * width
        for part in parts:
            found.append((row, part))
            row += part.tokens
    return Rows(parts=tuple(found), count=width * len(ranks))
