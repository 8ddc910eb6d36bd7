"""Messages of a trace: pairs of the sending and the receiving span."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.program.step_trace import Span, StepTrace, Track

Ends = tuple[Span, Span]
"""The span that sends, and the one that waits for it or begins with it."""
CONSUMERS: Final = {"SEND_F": ("F",), "SEND_B": ("I", "B")}
"""By kind of message: the kinds of action that need it."""


def messages(trace: StepTrace) -> Iterator[Ends]:
    """Pairs of spans (sender, receiver) of the messages whose two ends are both in the trace.

    Measured: a request to send and the one to receive; devices at both ends are known. Simulated: a
    message and the action that it is for; of the devices of two stages those at the same place
    among them, for devices of a class are traced as one.
    """
    yield from _measured_ends(
        [span for span in trace.spans if span.track is Track.MESSAGES and span.peer >= 0]
    )
    sent = defaultdict(list)
    for span in trace.spans:
        if span.kind in CONSUMERS:
            sent[span.kind, span.lane, span.chunk, span.target, span.microbatch, span.slice].append(
                span
            )
    firsts = _first_pieces(trace.spans) if sent else {}
    for (send_kind, lane, _, target, microbatch, slice_number), senders in sent.items():
        receivers = next(
            (
                spans_found
                for kind in CONSUMERS[send_kind]
                if (spans_found := firsts.get((kind, lane, target, microbatch, slice_number)))
            ),
            [],
        )
        number = max(len(senders), len(receivers)) if receivers else 0
        for place in range(number):
            sender, receiver = (
                senders[place * len(senders) // number],
                receivers[place * len(receivers) // number],
            )
            if sender.device != receiver.device:
                yield sender, receiver


def _first_pieces(spans: Sequence[Span]) -> dict[tuple[str, int, int, int, int], list[Span]]:
    """Each device's first span of every action, by (kind, lane, chunk, microbatch, slice).

    Each list in the order of devices.
    """
    first_span: dict[tuple[int, str, int, int, int, int], Span] = {}
    for span in spans:
        if span.track is Track.COMPUTE:
            first_span.setdefault(span.action, span)
    spans_of_action = defaultdict(list)
    for (_, kind, lane, chunk, microbatch, part), span in first_span.items():
        spans_of_action[kind, lane, chunk, microbatch, part].append(span)
    return spans_of_action


def _measured_ends(spans: Sequence[Span]) -> Iterator[Ends]:
    """Yield (send, receive) spans of two devices, matched in order if both are equally many.

    About the same microbatch in the same direction; none where some are lacking.
    """
    sent, received = defaultdict(list), defaultdict(list)
    for span in spans:
        subject = span.within == "F", span.lane, span.microbatch, span.slice
        if span.kind == "send":
            sent[span.device, span.peer, subject].append(span)
        else:
            received[span.peer, span.device, subject].append(span)
    for between, sends in sent.items():
        receives = received.get(between, [])
        if len(sends) == len(receives):
            yield from zip(sends, receives, strict=True)
