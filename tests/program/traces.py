"""Traces by hand and by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from shardwright.program.step_trace import (
    Origin,
    Sample,
    Span,
    StepTrace,
    TracedDevice,
    Track,
    sorted_spans,
)

PICO = 10**12


def span(
    device: int,
    start: float,
    end: float,
    kind: str = "F",
    *,
    track: Track = Track.COMPUTE,
    microbatch: int = 0,
    within: str = "",
) -> Span:
    return Span(
        device=device,
        track=track,
        kind=kind,
        start_s=start,
        end_s=end,
        lane=0,
        chunk=device,
        microbatch=microbatch,
        within=within,
    )


def trace(
    *spans: Span,
    origin: Origin = Origin.MEASURED,
    plan: str = "by hand",
    memory: tuple[Sample, ...] = (),
) -> StepTrace:
    ordered = sorted_spans(spans)
    devices = tuple(TracedDevice(device=d) for d in sorted({s.device for s in spans}))
    return StepTrace(
        plan=plan,
        origin=origin,
        devices=devices,
        spans=ordered,
        step_s=max(s.end_s for s in spans),
        memory=memory,
    )


@st.composite
def traces(draw: st.DrawFn) -> StepTrace:
    """Any trace whose times are whole picoseconds; spans may overlap."""
    devices = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True))
    count = st.integers(-1, 10**6)
    instant = st.integers(0, 10**13)
    spans = []
    for _ in range(draw(st.integers(0, 8))):
        start, length = draw(instant), draw(instant)
        spans.append(
            Span(
                device=draw(st.sampled_from(devices)),
                track=draw(st.sampled_from(Track)),
                kind=draw(st.text(max_size=8)),
                start_s=start / PICO,
                end_s=(start + length) / PICO,
                lane=draw(count),
                chunk=draw(count),
                microbatch=draw(count),
                slice=draw(count),
                within=draw(st.sampled_from(["", "F", "STEP"])),
                size=draw(st.integers(0, 2**50)),
                exposed_s=draw(st.integers(0, length)) / PICO,
                peer=draw(st.sampled_from([-1, *devices])),
                target=draw(count),
            )
        )
    samples = [
        Sample(
            device=draw(st.sampled_from(devices)),
            time_s=draw(instant) / PICO,
            held=draw(st.integers(0, 2**50)),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    return StepTrace(
        plan=draw(st.text(max_size=12)),
        origin=draw(st.sampled_from(Origin)),
        devices=tuple(
            TracedDevice(
                device=d,
                alike=draw(st.integers(1, 9)),
                runs=draw(st.sampled_from(["", "embed + 3 layer"])),
            )
            for d in sorted(devices)
        ),
        spans=sorted_spans(spans),
        step_s=draw(st.floats(0, 1e6)),
        memory=tuple(sorted(samples, key=lambda m: (m.device, m.time_s))),
        zero_s=draw(st.floats(-1e12, 1e12)),
    )
