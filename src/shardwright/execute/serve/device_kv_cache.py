"""One device's cache: blocks of keys, values and latents, and states of scans and convolutions."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import NamedTuple

import torch

from shardwright.execute.serve.kv_cache_blocks import CacheBlockTables, KeyReach


class CacheKey(NamedTuple):
    """Key of a kept tensor: run, layer, operator, and number among the operator's kept tensors."""

    run: int
    layer: int
    operator: str
    number: int


@dataclass(slots=True)
class DeviceCache:
    """The device's part of every cache block of its rank, and of every request's states.

    Freed blocks are filled with NaN, so that a read after that is detected.

    Args:
        tables: the block tables of the rank.
        pages: by key reach and cache key, (blocks, tokens of a block, local elements).
        states: by request and cache key.
        arrived: received tensors of requests that have no blocks yet, by request: (key reach, or
            None for a state; cache key; first position; values).
    """

    tables: CacheBlockTables
    pages: dict[tuple[KeyReach, CacheKey], torch.Tensor] = field(default_factory=dict)
    states: dict[tuple[int, CacheKey], torch.Tensor] = field(default_factory=dict)
    arrived: dict[int, list[tuple[KeyReach | None, CacheKey, int, torch.Tensor]]] = field(
        default_factory=dict
    )

    def put(
        self,
        reach: KeyReach,
        cache_key: CacheKey,
        *,
        request: int,
        start: int,
        values: torch.Tensor,
    ) -> None:
        """Write (tokens, elements) cache values to a request's blocks, from position `start` on."""
        page = self.pages.get((reach, cache_key))
        if page is None:
            shape = (self.tables.blocks, self.tables.block_tokens, values.shape[-1])
            page = self.pages[reach, cache_key] = values.new_full(shape, nan)
        page.flatten(0, 1)[
            self._row_numbers(reach, request, start, start + len(values), on=values.device)
        ] = values

    def get(self, reach: KeyReach, cache_key: CacheKey, *, request: int, end: int) -> torch.Tensor:
        """Read a request's cached values, (1, positions, elements), from first held to `end`."""
        page = self.pages[reach, cache_key]
        return page.flatten(0, 1)[
            self._row_numbers(reach, request, self.first(reach, request), end, on=page.device)
        ].unsqueeze(0)

    def first(self, reach: KeyReach, request: int) -> int:
        """First position of a request whose cache blocks of this reach are not freed yet."""
        return self.tables.held[reach, request].first * self.tables.block_tokens

    def store_arrived(self, request: int, *, end: int) -> None:
        """Write a request's received cache, up to position `end`, to its blocks and states."""
        for reach, cache_key, start, values in self.arrived.pop(request, []):
            if reach is None:
                self.states[request, cache_key] = values
                continue
            low = max(start, self.first(reach, request))
            self.put(
                reach,
                cache_key,
                request=request,
                start=low,
                values=values[0, low - start : end - start],
            )

    def drop(self, blocks: dict[KeyReach, list[int]], *, request: int | None = None) -> None:
        """Fill freed blocks with NaN; of a `request`, also drop states and received tensors."""
        for (reach, _), page in self.pages.items():
            page[blocks.get(reach, [])] = nan
        if request is not None:
            self.states = {
                place: state for place, state in self.states.items() if place[0] != request
            }
            self.arrived.pop(request, None)

    def _row_numbers(
        self, reach: KeyReach, request: int, low: int, high: int, *, on: torch.device
    ) -> torch.Tensor:
        """Rows of positions `low` to `high` of a request in a page, by its block table."""
        table, size = self.tables.held[reach, request], self.tables.block_tokens
        positions = torch.arange(low, high, device=on)
        blocks = torch.tensor(table.blocks, dtype=torch.int64, device=on)
        return blocks[positions // size - table.first] * size + positions % size
