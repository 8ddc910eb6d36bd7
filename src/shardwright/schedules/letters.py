"""Action text in PyTorch's letters: ``2F0`` is the forward of chunk 2 on microbatch 0,
``(0F1;1B0)OVERLAP_F_B`` a pair.

Ours beyond PyTorch's: any two kinds may be a pair, ``R`` is recompute, ``up/2F0`` names a lane and
``2F0.1`` a slice.
"""

from __future__ import annotations

from typing import Final

from shardwright.schedules.entries import Entry, actions_of

PAIR: Final = "OVERLAP_F_B"


def format_action(entry: Entry, *, lanes: tuple[str, ...] = ()) -> str:
    """`entry` as text; with more than one lane the lane's name stands before each action."""
    texts = []
    for action in actions_of(entry):
        lane = f"{lanes[action.lane]}/" if len(lanes) > 1 else ""
        part = f".{action.slice}" if action.slice else ""
        texts.append(f"{lane}{action.chunk}{action.kind}{action.microbatch}{part}")
    return texts[0] if len(texts) == 1 else f"({';'.join(texts)}){PAIR}"
