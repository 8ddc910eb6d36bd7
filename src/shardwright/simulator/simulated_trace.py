"""The trace of a simulated step: the timed spans of each device of a general plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.cost.step.overlapped_action_pair_seconds import pair_seconds
from shardwright.cost.step.stage_action_seconds import (
    StageCosts,
    action_seconds,
    exposed_seconds,
    kept_changes,
    product_seconds,
    routed_seconds,
)
from shardwright.errors import UsageError
from shardwright.program.device_classes_with_equal_actions import class_numbers
from shardwright.program.lowered_program import Program
from shardwright.program.step_trace import (
    Origin,
    Sample,
    Span,
    StepTrace,
    TracedDevice,
    Track,
    sorted_spans,
)
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind, Template
from shardwright.program.timeline_message_pairs import CONSUMERS
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.simulator.simulation_memory_limit import TASK_BYTES, require_room
from shardwright.units import PICOSECONDS_PER_SECOND

_TRACKS = {
    Stream.COMPUTE: Track.COMPUTE,
    Stream.SEND_F: Track.SEND_F,
    Stream.SEND_B: Track.SEND_B,
    Stream.SYNC: Track.SYNC,
}
_IN_USE = frozenset({"activations", "logits", "temporary"})
"""Items of memory that are allocated and freed within a step."""


def simulated_trace(
    simulated: SimulatedPlan, *, plan: str, devices: Sequence[int] = ()
) -> StepTrace:
    """Trace of the simulated step: spans of the chosen devices, and their memory over time.

    The memory is the bytes that a device always has plus the activations that its microbatches
    keep. The logits and the bytes that a layer needs while it runs are left out; `StageMemory`
    counts them once.

    Args:
        plan: name of the plan.
        devices: devices to trace; none = the first of each class, which stands for the whole class.

    Raises:
        UsageError: a device runs nothing in this plan.
        ResourceError: this machine does not have the memory for so many tasks.
    """
    program = simulated.program
    chosen = tuple(sorted(set(devices))) or tuple(sorted(c.devices.first for c in program.classes))
    numbers = class_numbers(program.classes)
    idle = [d for d in chosen if not 0 <= d < len(numbers) or numbers[d] < 0]
    if idle:
        raise UsageError(
            f"device {idle[0]} runs nothing in this plan",
            hint=f"devices are 0 to {len(numbers) - 1}",
        )
    tasks = np.bincount(
        program.templates.klass[program.instances.template], minlength=len(program.classes)
    )
    count = int(tasks[numbers[list(chosen)]].sum())
    require_room(count, action_bytes=TASK_BYTES, doing=f"a trace of {count:,} tasks")
    traced, spans, memory = [], [], []
    for device in chosen:
        number = int(numbers[device])
        device_spans = _spans(simulated, number, device=device)
        spans += device_spans
        memory += _memory_samples(simulated, number, device_spans, device=device)
        alike = 1 if devices else len(program.classes[number].devices)
        traced.append(
            TracedDevice(device=device, alike=alike, runs=simulated.memory[number].layers)
        )
    return StepTrace(
        plan=plan,
        origin=Origin.SIMULATED,
        devices=tuple(traced),
        spans=sorted_spans(spans),
        step_s=simulated.step_time_s,
        memory=tuple(memory),
    )


def _spans(simulated: SimulatedPlan, number: int, *, device: int) -> list[Span]:
    """Spans of `device`: the tasks of class `number` with start and end in s and track."""
    program, instances, timeline = (
        simulated.program,
        simulated.program.instances,
        simulated.timeline,
    )
    own_tasks = np.flatnonzero(instances.klass == number)
    start, end = (
        instants[own_tasks] / PICOSECONDS_PER_SECOND
        for instants in (timeline.start, timeline.finish)
    )
    templates: dict[int, Template] = {}
    shares: dict[int, float] = {}
    targets: dict[int, int] = {}
    spans = []
    for place, task in enumerate(own_tasks.tolist()):
        index = int(instances.template[task])
        if index not in templates:
            templates[index] = template = program.templates[index]
            shares[index] = _waiting_share(program, simulated.costs, template)
            targets[index] = _receiving_chunk(program, task, template)
        template = templates[index]
        begin, finish = float(start[place]), float(end[place])
        spans.append(
            Span(
                device=device,
                track=_TRACKS[Stream(int(instances.stream[task]))],
                kind=template.kind.name,
                start_s=begin,
                end_s=finish,
                lane=template.lane,
                chunk=template.chunk,
                microbatch=int(instances.microbatch[task]),
                slice=template.slice,
                exposed_s=(finish - begin) * shares[index],
                target=targets[index],
            )
        )
    return spans


def _receiving_chunk(program: Program, task: int, template: Template) -> int:
    """Chunk whose action receives a message; -1 for other tasks or the same chunk."""
    receiving_kinds = CONSUMERS.get(template.kind.name, ())
    instances = program.instances
    successors = (
        instances.successor[
            instances.successor_start[task] : instances.successor_start[task + 1]
        ].tolist()
        if receiving_kinds
        else []
    )
    for successor in successors:
        receiver = program.templates[int(instances.template[successor])]
        subject = receiver.lane, receiver.slice, int(instances.microbatch[successor])
        if (
            receiver.kind.name in receiving_kinds
            and receiver.chunk != template.chunk
            and subject == (template.lane, template.slice, instances.microbatch[task])
        ):
            return receiver.chunk
    return -1


def _waiting_share(program: Program, costs: StageCosts, template: Template) -> float:
    """Fraction of an action in which its kernels wait for collectives or slower devices."""
    if template.kind > TaskKind.R:
        return 0.0
    family_of = {
        (lane, chunk): family for lane, chunk, family in program.classes[template.klass].families
    }

    def spent(lane: int, chunk: int, kind: int, part: int) -> tuple[float, float, float, float]:
        """(total, expert all-to-all, GEMM and attention, own kernels) seconds of an action."""
        step, task_kind = costs.step(lane, chunk, family_of[lane, chunk], part), TaskKind(kind)
        seconds = costs.seconds(
            lane, chunk, family_of[lane, chunk], part, task_kind, early=template.early
        )
        exposed, routed, products = (
            min(part(step, task_kind), seconds)
            for part in (exposed_seconds, routed_seconds, product_seconds)
        )
        return (
            seconds,
            routed,
            products,
            max(action_seconds(step, task_kind, early=template.early) - exposed, 0.0),
        )

    own_action = spent(template.lane, template.chunk, int(template.kind), template.slice)
    seconds, kernels = own_action[0], own_action[3]
    if template.partner is not None:
        partner_action = spent(*template.partner)
        seconds, kernels = (
            float(pair_seconds(own_action[:3], partner_action[:3], costs.taken)),
            kernels + partner_action[3],
        )
    return min(max(1.0 - kernels / seconds, 0.0), 1.0) if seconds > 0.0 else 0.0


def _memory_samples(
    simulated: SimulatedPlan, number: int, spans: Sequence[Span], *, device: int
) -> list[Sample]:
    """Bytes that a device of class `number` holds: at time 0 and at each later change."""
    program = simulated.program
    device_class = program.classes[number]
    constant_bytes = sum(
        size for name, size in simulated.memory[number].items if name not in _IN_USE
    )
    span_of_action: dict[tuple[str, int, int, int, int], tuple[float, float]] = {}
    for span in spans:
        if span.track is Track.COMPUTE:
            begin, _ = span_of_action.get(span.action[1:], (span.start_s, 0.0))
            span_of_action[span.action[1:]] = begin, span.end_s
    rows = program.rows
    first_action = int(rows.row_start[device_class.row])
    changes = []
    for place, change in enumerate(kept_changes(program, simulated.costs, device_class).tolist()):
        if change:
            action = first_action + place
            kind = TaskKind(int(rows.kind[action])).name
            begin, end = span_of_action[
                kind,
                int(rows.lane[action]),
                int(rows.chunk[action]),
                int(rows.microbatch[action]),
                int(rows.slice[action]),
            ]
            changes.append((begin if change > 0 else end, change))
    samples, bytes_held = [Sample(device=device, time_s=0.0, held=constant_bytes)], constant_bytes
    # Bytes that are released at an instant can be reused at the same instant.
    for time, change in sorted(changes):
        bytes_held += change
        samples.append(Sample(device=device, time_s=time, held=bytes_held))
    return samples
