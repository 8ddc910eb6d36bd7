"""Batch of a serving iteration: the new tokens of each request, and their rows."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPart:
    """New tokens of a request in an iteration: `tokens` tokens from position `past` on.

    All positions before are cached. A request that decodes has one token.
    """

    request: int
    tokens: int
    past: int

    def __post_init__(self) -> None:
        if self.request < 0 or self.tokens < 1 or self.past < 0:
            raise ValueError(f"{self.tokens} tokens of request {self.request} after {self.past}")

    @property
    def end(self) -> int:
        """Number of the request's cached positions after the iteration."""
        return self.past + self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRows:
    """Rows of an iteration's batch: each token is a sample of one position.

    All ranks of a worker (data-parallel attention) have equally many rows.

    Args:
        parts: (first row, part) of each request.
        count: number of all rows; rows of no part are padding, whose outputs are dropped.
    """

    parts: tuple[tuple[int, RequestPart], ...]
    count: int


def padded_rows(
    ranks: Sequence[Sequence[RequestPart]], *, sizes: Sequence[int] = ()
) -> IterationRows:
    """Rows of each rank's tokens, padded to the most of any rank and then up to one of `sizes`.

    Args:
        ranks: request parts of each rank.
        sizes: ascending numbers of tokens a rank, as captured CUDA graphs have them; above the last
            size nothing is padded.
    """
    most_tokens = max(1, *(sum(part.tokens for part in parts) for parts in ranks)) if ranks else 1
    width = next((size for size in sizes if size >= most_tokens), most_tokens)
    placed_parts: list[tuple[int, RequestPart]] = []
    for rank, parts in enumerate(ranks):
        row = rank * width
        for part in parts:
            placed_parts.append((row, part))
            row += part.tokens
    return IterationRows(parts=tuple(placed_parts), count=width * len(ranks))
