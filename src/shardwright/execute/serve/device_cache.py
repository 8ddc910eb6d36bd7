"""One device's cache: pages of keys, values and latents, and states of scans and convolutions."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import NamedTuple

import torch

from shardwright.execute.serve.cache_blocks import BlockTables, Reach


class Spot(NamedTuple):
    """Whose memory it is: operator of a layer of a run, and which of the tensors that it keeps."""

    run: int
    layer: int
    operator: str
    number: int


@dataclass(slots=True)
class DeviceCache:
    """The device's part of every block of its rank, and of every request's states.

    Blocks that are given back are filled with NaN: whoever still reads them is found out.

    Args:
        tables: of the rank.
        pages: by reach and spot, (blocks, tokens of a block, elements here).
        states: by request and spot.
        arrived: what came of requests that have no blocks yet, by request: (reach, or None of a
            state; spot; first position; values).
    """

    tables: BlockTables
    pages: dict[tuple[Reach, Spot], torch.Tensor] = field(default_factory=dict)
    states: dict[tuple[int, Spot], torch.Tensor] = field(default_factory=dict)
    arrived: dict[int, list[tuple[Reach | None, Spot, int, torch.Tensor]]] = field(
        default_factory=dict
    )

    def put(
        self, reach: Reach, spot: Spot, *, request: int, start: int, values: torch.Tensor
    ) -> None:
        """Keep (tokens, elements) at positions from `start` on."""
        page = self.pages.get((reach, spot))
        if page is None:
            shape = (self.tables.blocks, self.tables.block_tokens, values.shape[-1])
            page = self.pages[reach, spot] = values.new_full(shape, nan)
        page.flatten(0, 1)[
            self._places(reach, request, start, start + len(values), on=values.device)
        ] = values

    def get(self, reach: Reach, spot: Spot, *, request: int, end: int) -> torch.Tensor:
        """(1, positions, elements) from `first` up to `end`."""
        page = self.pages[reach, spot]
        return page.flatten(0, 1)[
            self._places(reach, request, self.first(reach, request), end, on=page.device)
        ].unsqueeze(0)

    def first(self, reach: Reach, request: int) -> int:
        """The first position that is still held."""
        return self.tables.held[reach, request].first * self.tables.block_tokens

    def land(self, request: int, *, end: int) -> None:
        """Store a request's received tokens in its blocks, up to position `end`, and its states."""
        for reach, spot, start, values in self.arrived.pop(request, []):
            if reach is None:
                self.states[request, spot] = values
                continue
            low = max(start, self.first(reach, request))
            self.put(
                reach, spot, request=request, start=low, values=values[0, low - start : end - start]
            )

    def drop(self, blocks: dict[Reach, list[int]], *, request: int | None = None) -> None:
        """Forget blocks, and the states of a request and what came of it."""
        for (reach, _), page in self.pages.items():
            page[blocks.get(reach, [])] = nan
        if request is not None:
            self.states = {
                place: state for place, state in self.states.items() if place[0] != request
            }
            self.arrived.pop(request, None)

    def _places(
        self, reach: Reach, request: int, low: int, high: int, *, on: torch.device
    ) -> torch.Tensor:
        """Row numbers of positions among all of the pages' rows."""
        table, size = self.tables.held[reach, request], self.tables.block_tokens
        positions = torch.arange(low, high, device=on)
        blocks = torch.tensor(table.blocks, dtype=torch.int64, device=on)
        return blocks[positions // size - table.first] * size + positions % size
