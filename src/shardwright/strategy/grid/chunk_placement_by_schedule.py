"""Placement of chunks on pipeline ranks by each schedule that a grid can name.

The action tables are in `schedules`, above this package; a test holds both to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

LOOPED: Final = "looped"
WAVE: Final = "wave"
OPPOSITE: Final = "opposite"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSchedule:
    """Placement of a pipeline schedule's chunks on ranks: looped, wave (V) or two opposite lanes.

    Args:
        placement: looped (chunk c on rank c mod pp), wave (down the ranks, up again, ...) or
            opposite (two lanes, one down and one up, with half of the microbatches each).
        chunks: chunks of each rank and lane where a grid sets no vpp.
    """

    placement: str = LOOPED
    chunks: int = 1

    @property
    def lanes(self) -> int:
        """Number of lanes that share the ranks: 2 for opposite lanes, else 1."""
        return 2 if self.placement == OPPOSITE else 1

    def rank(self, chunk: int, *, pp: int, lane: int = 0) -> int:
        """Pipeline rank of a chunk: chunk mod pp, reversed in odd wave turns or opposite lane 1."""
        turn, place = divmod(chunk, pp)
        upward = (
            lane == 1 if self.placement == OPPOSITE else self.placement == WAVE and turn % 2 == 1
        )
        return pp - 1 - place if upward else place


_V: Final = GridSchedule(placement=WAVE, chunks=2)
_TWO_WAY: Final = GridSchedule(placement=OPPOSITE)

GRID_SCHEDULES: Final[Mapping[str, GridSchedule]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("gpipe", "1f1b", "eager-1f1b", "breadth-first", "looped-bfs"), GridSchedule()
        ),
        "interleaved-1f1b": GridSchedule(),
        **dict.fromkeys(("zb-h1", "zb-h2", "terapipe", "seq-1f1b"), GridSchedule()),
        **dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipe-v", "hanayo"), _V),
        **dict.fromkeys(("dualpipe", "chimera", "gems"), _TWO_WAY),
    }
)
"""Placement of every schedule that a grid can name, by the schedule's name."""


def grid_schedule(name: str) -> GridSchedule:
    """Chunk placement of a schedule by its name; looped for an unknown name."""
    return GRID_SCHEDULES.get(name, GridSchedule())
