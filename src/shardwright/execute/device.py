"""One device of a plan: a coroutine that walks its row of the order and asks its transport for everything that is not its own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch

from shardwright.execute.block_run import BlockRun, LayerState, run_backward, run_forward, run_weights
from shardwright.execute.moved import moved
from shardwright.execute.parameters import ParameterStore
from shardwright.execute.past import Past
from shardwright.execute.places import Site
from shardwright.execute.redistribute import Halfway, post, take
from shardwright.execute.requests import Task
from shardwright.execute.stage_nodes import Node, stage_nodes
from shardwright.model.graph import Model
from shardwright.program.action_rows import ActionRows
from shardwright.program.instances import TaskKind
from shardwright.program.layout import Holding, Layout
from shardwright.program.stage_edges import StageEdge, border_layout, edge_segments
from shardwright.program.stage_parts import Segment, StageParts
from shardwright.strategy.lane import Lane

Batch = Mapping[str, torch.Tensor]
"""By sequence: token ids (samples, positions), or features (samples, positions, width); ``labels``: of the text."""


Turn = tuple[int, int, int, int]
"""(lane, chunk, microbatch, slice) of an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all devices know of a step.

    Args:
        stages, rows, edges: of the plan. lengths: positions by sequence. widths: of each run's output. first_sample: of each lane.
        scale: factor of every token's loss. slices: tokens of each slice, by lane (one if a sequence is whole).
    """

    model: Model
    slices: tuple[tuple[int, ...], ...]
    lanes: tuple[Lane, ...]
    stages: tuple[tuple[StageParts, ...], ...]
    rows: ActionRows
    edges: tuple[tuple[StageEdge, ...], ...]
    lengths: Mapping[str, int]
    widths: tuple[int, ...]
    first_sample: tuple[int, ...]
    scale: float
    island: int


@dataclass(slots=True)
class _Flow:
    """A microbatch in a chunk on this device: values by id, layouts by id, states of layers."""

    values: dict[int, torch.Tensor | None] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    states: dict[int, LayerState] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    cotangents: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """What a device did: (lane, microbatch, token box) -> sum of losses, and its parameters with their gradients."""

    losses: dict[object, torch.Tensor]
    store: ParameterStore


def device_task(device: int, work: Work, *, batch: Batch, store: ParameterStore) -> Task[Outcome]:
    """The whole step of `device`: its actions in order. Gradients are the device's own; summing them is `gradients`."""
    walker = _Walker(device, work, batch, store)
    rows = work.rows
    row = next(i for i, devices in enumerate(rows.devices) if device in devices)
    for action in range(int(rows.row_start[row]), int(rows.row_start[row + 1])):
        place = (int(rows.lane[action]), int(rows.chunk[action]), int(rows.microbatch[action]), int(rows.slice[action]))
        kind = TaskKind(int(rows.kind[action]))
        if kind is TaskKind.F:
            yield from walker.forward(*place)
        elif kind is TaskKind.R:
            yield from walker.again(*place)
        elif kind is TaskKind.I:
            yield from walker.backward(*place)
        elif kind is TaskKind.W:
            yield from walker.weights(*place)
        else:
            yield from walker.backward(*place)
            yield from walker.weights(*place)
    return Outcome(losses=walker.losses, store=store)


class _Walker:
    """State of a device in a step."""

    def __init__(self, device: int, work: Work, batch: Batch, store: ParameterStore) -> None:
        self.device, self.work, self.batch, self.store = device, work, batch, store
        self.flows: dict[Turn, _Flow] = {}
        self.losses: dict[object, torch.Tensor] = {}
        self.halfway: dict[object, Halfway | None] = {}
        self.past: dict[object, Past] = {}

    def _past(self, place: Turn, node: Node) -> Past:
        """Keys of the microbatch's earlier slices at a node."""
        return self.past.setdefault((*place[:3], node.number), Past())

    def _run(self, node: Node, place: Turn) -> BlockRun:
        """A node on this device, with its data."""
        lane, chunk, microbatch, part = place
        stage, work = self.work.stages[lane][chunk], self.work
        block = node.segment.block
        slices = work.slices[lane]
        sliced = len(slices) > 1
        starts = [sum(slices[:i]) for i in range(len(slices))]
        site = Site(
            cells=node.segment.cells,
            device=self.device - stage.base,
            base=stage.base,
            length=slices[part] if sliced else work.lengths[block.sequence],
            memory_length=work.lengths.get(block.memory, 0),
            settings=self.store.settings,
            start=starts[part] if sliced else 0,
            whole=work.lengths[block.sequence] if sliced else 0,
            earlier=tuple(zip(starts, slices, strict=True))[:part],
        )
        lane_of = work.lanes[lane]
        samples = lane_of.samples // lane_of.microbatches
        first = work.first_sample[lane] + microbatch * samples
        data = {name: whole[first : first + samples] for name, whole in self.batch.items()}
        return BlockRun(
            site=site,
            run=node.segment.run,
            layer=node.layer,
            block=block,
            data=data,
            key=(lane, chunk, microbatch, part, node.number),
            scale=work.scale,
        )

    def _stream(self, segment: Segment, stage: StageParts, *, part: int, out: bool, run: int | None = None) -> Layout:
        """Where a layer's input (of `run`: a memory is in its own sequence) or output of a slice lies."""
        model, source = self.work.model, segment.run if run is None else run
        slices = self.work.slices[stage.lane]
        length = slices[part] if len(slices) > 1 else self.work.lengths[model.blocks[model.runs[source].block].sequence]
        found = border_layout(segment, width=self.work.widths[source], length=length, out=out)
        return tuple(Holding(device=h.device + stage.base, box=h.box) for h in found)

    def forward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Take what comes in, run every node, post what goes out."""
        place = (lane, chunk, microbatch, part)
        stage, flow = self.work.stages[lane][chunk], _Flow()
        self.flows[place] = flow
        nodes = stage_nodes(stage, self.work.model)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.target == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                value = yield from self._take(source, target, ("F", number, lane, microbatch, part))
                identity = -1 - number
                flow.values[identity], flow.layouts[identity] = value, target
                flow.outputs[edge.run] = flow.received[number] = identity
        for node in nodes:
            yield from self._node_forward(node, place, flow)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.source == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                identity = flow.outputs[edge.run]
                value = yield from self._moved(flow.values[identity], flow.layouts[identity], source, ("out", number, *place))
                yield from self._post(value, source, target, ("F", number, lane, microbatch, part))

    def _edge_layouts(self, lane: int, edge: StageEdge, part: int) -> tuple[Layout, Layout]:
        """Where the tensor of an edge lies on both sides."""
        stages, model = self.work.stages[lane], self.work.model
        made, read = edge_segments(edge, stages[edge.source], stages[edge.target], model=model)
        source = self._stream(made, stages[edge.source], part=part, out=True, run=edge.run)
        return source, self._stream(read, stages[edge.target], part=part, out=False, run=edge.run)

    def _moved(self, value: torch.Tensor | None, source: Layout, wanted: Layout, key: Hashable) -> Task[torch.Tensor | None]:
        return (yield from moved(value, source, wanted, device=self.device, key=key))

    def _post(self, value: torch.Tensor | None, source: Layout, wanted: Layout, key: Hashable) -> Task[None]:
        if any(h.device == self.device for h in source):
            given = (value,) if value is not None else ()
            self.halfway[key] = yield from post(given, source, wanted, device=self.device, key=key)

    def _take(self, source: Layout, wanted: Layout, key: Hashable) -> Task[torch.Tensor | None]:
        if not any(h.device == self.device for h in wanted):
            return None
        found = yield from take(self.halfway.pop(key, None), source, wanted, device=self.device, key=key, dtype=torch.float64)
        return found[0] if found else None

    def _inputs(self, node: Node, place: Turn, flow: _Flow) -> Task[tuple[torch.Tensor | None, torch.Tensor | None]]:
        """The node's stream and memory, in its own cells."""
        stage = self.work.stages[place[0]][place[1]]
        found: list[torch.Tensor | None] = []
        for which, run in enumerate((node.input_run, node.memory_run)):
            if run is None:
                found.append(None)
                continue
            identity = flow.outputs[run]
            wanted = self._stream(node.segment, stage, part=place[3], out=False, run=run)
            key = ("in", which, node.number, *place)
            found.append((yield from self._moved(flow.values[identity], flow.layouts[identity], wanted, key)))
        return found[0], found[1]

    def _node_forward(self, node: Node, place: Turn, flow: _Flow) -> Task[None]:
        stage = self.work.stages[place[0]][place[1]]
        stream, memory = yield from self._inputs(node, place, flow)
        sources = (
            flow.outputs.get(node.input_run) if node.input_run is not None else None,
            flow.outputs.get(node.memory_run) if node.memory_run is not None else None,
        )
        run = self._run(node, place)
        value, state = yield from run_forward(run, stream, memory, self.store, self.losses, self._past(place, node))
        state.sources = sources
        if node.recomputed:
            state.forget(stream, memory)
        flow.states[node.number] = state
        flow.values[node.number] = value
        flow.layouts[node.number] = self._stream(node.segment, stage, part=place[3], out=True)
        flow.outputs[node.segment.run] = node.number

    def again(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Run forward again what was not kept."""
        place = (lane, chunk, microbatch, part)
        flow = self.flows[place]
        for node in stage_nodes(self.work.stages[lane][chunk], self.work.model):
            state = flow.states[node.number]
            if state.forgotten:
                _, fresh = yield from run_forward(
                    self._run(node, place), state.stream, state.memory, self.store, {}, self._past(place, node)
                )
                fresh.sources = state.sources
                flow.states[node.number] = fresh

    def backward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Take cotangents of what went out, run every node back, post cotangents of what came in."""
        place = (lane, chunk, microbatch, part)
        yield from self.again(*place)
        stage, flow = self.work.stages[lane][chunk], self.flows[place]
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.source == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                back = yield from self._take(target, source, ("B", number, lane, microbatch, part))
                identity = flow.outputs[edge.run]
                back = yield from self._moved(back, source, flow.layouts[identity], ("back", number, *place))
                self._add(flow, identity, back)
        for node in reversed(stage_nodes(stage, self.work.model)):
            yield from self._node_backward(node, place, flow)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.target == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                value = flow.cotangents.get(flow.received[number])
                if value is None and flow.values[flow.received[number]] is not None:
                    value = torch.zeros_like(flow.values[flow.received[number]])
                yield from self._post(value, target, source, ("B", number, lane, microbatch, part))

    def _add(self, flow: _Flow, identity: int, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            known = flow.cotangents.get(identity)
            flow.cotangents[identity] = gradient if known is None else known + gradient

    def _node_backward(self, node: Node, place: Turn, flow: _Flow) -> Task[None]:
        stage = self.work.stages[place[0]][place[1]]
        state = flow.states[node.number]
        value = flow.values[node.number]
        gradient = flow.cotangents.pop(node.number, None)
        if gradient is None and value is not None:
            gradient = torch.zeros_like(value)
        found = yield from run_backward(self._run(node, place), state, gradient, self.store, self._past(place, node))
        for which, (run, back) in enumerate(zip((node.input_run, node.memory_run), found, strict=True)):
            if run is None:
                continue
            identity = state.sources[which]
            assert identity is not None
            wanted = self._stream(node.segment, stage, part=place[3], out=False, run=run)
            moved = yield from self._moved(back, wanted, flow.layouts[identity], ("give", which, node.number, *place))
            self._add(flow, identity, moved)

    def weights(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Weight gradients of every node; the microbatch is then forgotten."""
        place = (lane, chunk, microbatch, part)
        flow = self.flows.pop(place)
        for node in reversed(stage_nodes(self.work.stages[lane][chunk], self.work.model)):
            yield from run_weights(self._run(node, place), flow.states[node.number], self.store)
