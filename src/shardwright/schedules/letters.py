"""Action text in PyTorch's letters: ``2F0`` is the forward of chunk 2 on microbatch 0, ``(0F1;1B0)OVERLAP_F_B`` a pair.

Ours beyond PyTorch's: any two kinds may be a pair, ``R`` is recompute, ``up/2F0`` names a lane and ``2F0.1`` a slice.
"""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import DataError
from shardwright.schedules.entries import Entry, actions_of
from shardwright.strategy.plan.order import Action, Kind

PAIR: Final = "OVERLAP_F_B"

_ACTION: Final = re.compile(r"(?:([A-Za-z_][\w-]*)/)?([0-9]{1,7})([FIWBR])([0-9]{1,7})(?:\.([0-9]{1,7}))?", re.ASCII)
_COMMUNICATION: Final = re.compile(r"[0-9]+(?:SEND|RECV|UNSHARD|RESHARD|REDUCE)", re.ASCII)


def format_action(entry: Entry, *, lanes: tuple[str, ...] = ()) -> str:
    """`entry` as text; with more than one lane the lane's name stands before each action."""
    texts = []
    for action in actions_of(entry):
        lane = f"{lanes[action.lane]}/" if len(lanes) > 1 else ""
        part = f".{action.slice}" if action.slice else ""
        texts.append(f"{lane}{action.chunk}{action.kind}{action.microbatch}{part}")
    return texts[0] if len(texts) == 1 else f"({';'.join(texts)}){PAIR}"


def parse_action(text: str, *, lanes: tuple[str, ...] = ()) -> Entry:
    """The entry that `text` says; DataError if it says none."""
    word = text.strip()
    if word.startswith("(") and word.endswith(f"){PAIR}"):
        parts = word[1 : -len(PAIR) - 1].split(";")
        if len(parts) != 2:
            raise DataError(f"a pair has two actions, {_shown(word)} has {len(parts)}")
        return _parse_one(parts[0], lanes), _parse_one(parts[1], lanes)
    return _parse_one(word, lanes)


def _parse_one(text: str, lanes: tuple[str, ...]) -> Action:
    """A single action."""
    word = text.strip()
    match = _ACTION.fullmatch(word)
    if match is None:
        only = "communication is not written into a compute-only table; " if _COMMUNICATION.match(word) else ""
        raise DataError(f"{_shown(word)} is not an action", hint=f"{only}write chunk, one of F I W B R, and microbatch, such as 2F0")
    name, chunk, kind, microbatch, part = match.groups()
    if name is not None and name not in lanes:
        raise DataError(
            f"unknown lane {_shown(name)} in {_shown(word)}", hint=f"lanes: {', '.join(lanes[:8])}" if lanes else "there is one lane"
        )
    lane = lanes.index(name) if name is not None else 0
    return Action(chunk=int(chunk), kind=Kind(kind), microbatch=int(microbatch), lane=lane, slice=int(part or 0))


def _shown(word: str) -> str:
    """A word of the input, short enough for one line."""
    return repr(word if len(word) <= 40 else word[:37] + "...")
