"""Which spans of a trace are the two ends of a message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.program.step_trace import Span, StepTrace, Track

Ends = tuple[Span, Span]
"""The span that sends, and the one that waits for it or begins with it."""
CONSUMERS: Final = {"SEND_F": ("F",), "SEND_B": ("I", "B")}
"""What is sent -> the actions that need it."""


def messages(trace: StepTrace) -> Iterator[Ends]:
    """The messages of a trace whose ends are both in it.

    Measured: a request to send and the one to receive; devices at both ends are known. Simulated: a
    message and the action that it is for; of the devices of two stages those at the same place
    among them, for devices of a class are traced as one.
    """
    yield from _measured(
        [span for span in trace.spans if span.track is Track.MESSAGES and span.peer >= 0]
    )
    sent = defaultdict(list)
    for span in trace.spans:
        if span.kind in CONSUMERS:
            sent[span.kind, span.lane, span.chunk, span.target, span.microbatch, span.slice].append(
                span
            )
    firsts = _first_pieces(trace.spans) if sent else {}
    for (what, lane, _, target, microbatch, part), senders in sent.items():
        takers = next(
            (
                found
                for kind in CONSUMERS[what]
                if (found := firsts.get((kind, lane, target, microbatch, part)))
            ),
            [],
        )
        number = max(len(senders), len(takers)) if takers else 0
        for place in range(number):
            one, other = (
                senders[place * len(senders) // number],
                takers[place * len(takers) // number],
            )
            if one.device != other.device:
                yield one, other


def _first_pieces(spans: Sequence[Span]) -> dict[tuple[str, int, int, int, int], list[Span]]:
    """The first span of every action, by what it is; of each in the order of devices."""
    found: dict[tuple[int, str, int, int, int, int], Span] = {}
    for span in spans:
        if span.track is Track.COMPUTE:
            found.setdefault(span.action, span)
    result = defaultdict(list)
    for (_, kind, lane, chunk, microbatch, part), span in found.items():
        result[kind, lane, chunk, microbatch, part].append(span)
    return result


def _measured(spans: Sequence[Span]) -> Iterator[Ends]:
    """Requests of two devices about the same microbatch in the same direction meet in their order;
    where some are lacking, none do.
    """
    sent, received = defaultdict(list), defaultdict(list)
    for span in spans:
        about = span.within == "F", span.lane, span.microbatch, span.slice
        if span.kind == "send":
            sent[span.device, span.peer, about].append(span)
        else:
            received[span.peer, span.device, about].append(span)
    for between, ones in sent.items():
        others = received.get(between, [])
        if len(ones) == len(others):
            yield from zip(ones, others, strict=True)
