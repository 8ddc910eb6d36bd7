"""Text of pipeline actions in PyTorch's letters, such as ``2F0``.

``2F0`` is the forward of chunk 2 on microbatch 0, ``(0F1;1B0)OVERLAP_F_B`` a pair.

Ours beyond PyTorch's: any two kinds may be a pair, ``R`` is recompute, ``up/2F0`` names a lane and
``2F0.1`` a slice.
"""

from __future__ import annotations

from typing import Final

from shardwright.strategy.plan.pipeline_order import Entry, actions_of

PAIR: Final = "OVERLAP_F_B"


def format_action(entry: Entry, *, lanes: tuple[str, ...] = ()) -> str:
    """Text of an action (``3F0``: chunk 3, microbatch 0) or pair in PyTorch's letters.

    With several lanes, the lane's name stands before each action.
    """
    texts = []
    for action in actions_of(entry):
        lane_prefix = f"{lanes[action.lane]}/" if len(lanes) > 1 else ""
        slice_suffix = f".{action.slice}" if action.slice else ""
        texts.append(f"{lane_prefix}{action.chunk}{action.kind}{action.microbatch}{slice_suffix}")
    return texts[0] if len(texts) == 1 else f"({';'.join(texts)}){PAIR}"
