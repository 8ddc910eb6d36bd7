"""One device of a plan: a coroutine that walks its row of the order and asks its transport for
everything that is not its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import field
from itertools import zip_longest

import torch

from shardwright.execute.device_state.device_parameters import ParameterStore
from shardwright.execute.device_state.layer_state import (
    BlockRun,
    Inputs,
    LayerState,
    bring_back,
    send_away,
)
from shardwright.execute.device_state.operator_shares import Site
from shardwright.execute.interpreter.device_actions import Turn, actions
from shardwright.execute.interpreter.earlier_slices import EarlierSlices
from shardwright.execute.interpreter.expert_loads import ExpertLoads, Routed
from shardwright.execute.interpreter.layer_hooks import NOTHING, Around
from shardwright.execute.interpreter.load_balancing_counts import Balance, LaneBalance, balancer
from shardwright.execute.interpreter.recorder import Tell, silent
from shardwright.execute.interpreter.run_layer import (
    run_again,
    run_backward,
    run_forward,
    run_weights,
)
from shardwright.execute.interpreter.stage_nodes import (
    Node,
    Output,
    output_extents,
    output_sequence,
    stage_nodes,
)
from shardwright.execute.numerics.base.cut_operator import is_expert_choice
from shardwright.execute.numerics.base.local_tensors import shape_placeholder
from shardwright.execute.numerics.base.operator_protocol import Gradients
from shardwright.execute.numerics.images.image_token_positions import require_image_positions
from shardwright.execute.redistribution.edge_layouts import stream_layout
from shardwright.execute.redistribution.move_tensor import moved
from shardwright.execute.redistribution.redistribute import Halfway, post, take
from shardwright.execute.transport.requests import Task
from shardwright.hardware.device_topology import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.model.backward_reach import has_backward, without_gradient
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.program.layout.tensor_layout import Layout
from shardwright.program.orders.action_rows import ActionRows
from shardwright.program.stages.stage_messages import StageEdge, edge_segments
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.task_arrays import TaskKind
from shardwright.strategy.plan.lane import Lane

Batch = Mapping[str, torch.Tensor]
"""By sequence: token ids (samples, positions), or features (samples, positions, width); ``labels``:
of the text."""


Layouts = tuple[tuple[Layout, bool], ...]
"""Of every extent of an output, and whether it is whole numbers, which have no cotangent."""
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Facts of a step that all devices share.

    Args:
        stages, rows, edges: of the plan.
        lengths: positions by sequence.
        widths: of each run's output.
        first_sample: of each lane.
        scale: factor of every token's loss.
        slices: tokens of each slice, by lane (one if a sequence is whole).
        balances: of each lane, who counts the load of its experts; empty where no such loss is
            computed.
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
    islands: Units | None
    balances: tuple[LaneBalance | None, ...] = ()


@dataclass(slots=True)
class _Flow:
    """A microbatch in a chunk on this device: values and their layouts by id (every extent of
    each), states of layers, and what its routers need for the load-balancing loss.
    """

    values: dict[int, Gradients] = field(default_factory=dict)
    layouts: dict[int, Layouts] = field(default_factory=dict)
    states: dict[int, LayerState] = field(default_factory=dict)
    outputs: dict[Output, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    cotangents: dict[int, Gradients] = field(default_factory=dict)
    balance: Balance | None = None


@dataclass(slots=True)
class Outcome:
    """Results of one device's step.

    Args:
        losses: (lane, microbatch, token box) -> sum of losses.
        store: its parameters with their gradients.
        balance: of the step's load-balancing loss what it answers for; None: none is computed.
    """

    losses: dict[object, torch.Tensor]
    store: ParameterStore
    balance: torch.Tensor | None = None


def device_task(
    device: int,
    work: DeviceWork,
    *,
    batch: Batch,
    store: ParameterStore,
    tell: Tell = silent,
    walking: Walking | None = None,
    around: Around = NOTHING,
    loads: ExpertLoads | None = None,
) -> Task[Outcome]:
    """The whole step of `device`: its actions in order. Gradients are the device's own; summing
    them is `gradients`.

    Args:
        tell: is told each action as it begins.
        walking: makes what runs the actions; None = a `Walker`, which computes.
        around: what it does around each layer.
        loads: gets the choices of routers with a bias; None: nobody counts them.
    """
    walker = (walking or Walker)(device, work, batch, store)
    walker.around, walker.loads = around, loads
    for kind, place in actions(device, work.rows):
        tell(kind, place)
        if kind is TaskKind.F:
            yield from walker.forward(*place)
        elif kind is TaskKind.R:
            yield from walker.again(*place)
        elif kind is TaskKind.I:
            yield from walker.backward(*place)
        elif kind is TaskKind.W:
            yield from walker.weights(*place)
        else:
            yield from walker.both(*place)
    balance = None if walker.balancer is None else (yield from walker.balancer.losses(work.lanes))
    return Outcome(losses=walker.losses, store=store, balance=balance)


def forward_task(
    device: int, work: DeviceWork, *, batch: Batch, store: ParameterStore, around: Around = NOTHING
) -> Task[Outcome]:
    """The forward actions of a step alone, in the step's order: losses of tokens; nothing is kept
    for a backward.

    Without the others the order is still one of all devices: what a forward waits for is forwards.
    """
    walker = Walker(device, work, batch, store)
    walker.around, walker.balancer = around, None
    for kind, place in actions(device, work.rows):
        if kind is TaskKind.F:
            yield from walker.forward(*place)
            del walker.flows[place]
    return Outcome(losses=walker.losses, store=store)


class Walker:
    """State of a device in a step, and what it does for each action."""

    def __init__(self, device: int, work: DeviceWork, batch: Batch, store: ParameterStore) -> None:
        self.device, self.work, self.store = device, work, store
        require_image_positions(batch, work.model.settings)
        self.batch = {name: whole.to(store.on) for name, whole in batch.items()}
        self.flows: dict[Turn, _Flow] = {}
        self.losses: dict[object, torch.Tensor] = {}
        self.halfway: dict[object, Halfway | None] = {}
        self.past: dict[object, EarlierSlices] = {}
        self.around: Around = NOTHING
        self.loads: ExpertLoads | None = None
        self.balancer = balancer(
            device,
            work.balances,
            coefficient=store.settings.load_balancing,
            length=work.lengths.get(TEXT, 0),
            on=store.on,
        )

    def _past(self, place: Turn, node: Node) -> EarlierSlices:
        """Keys of the microbatch's earlier slices at a node."""
        return self.past.setdefault((*place[:3], node.number), EarlierSlices())

    def _run(self, node: Node, place: Turn) -> BlockRun:
        """A node on this device, with its data."""
        lane, chunk, microbatch, part = place
        stage, work = self.work.stages[lane][chunk], self.work
        block = node.block
        slices = work.slices[lane]
        sliced = len(slices) > 1
        starts = [sum(slices[:i]) for i in range(len(slices))]
        site = Site(
            cells=node.segment.cells,
            device=self.device - stage.base,
            base=stage.base,
            length=slices[part] if sliced else work.lengths[block.sequence],
            memory_length=work.lengths.get(block.memory, 0),
            settings=self.store.settings.of_block(block.name),
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
            again=node.again,
            dropped=node.dropped,
            hosted=node.hosted,
        )

    def _lying(self, output: Output, segment: Segment, stage: StageParts, *, part: int) -> Layouts:
        """The layout of every extent of an output at the border of a segment that makes or reads
        it.
        """
        model, slices = self.work.model, self.work.slices[stage.lane]
        length = (
            slices[part] if len(slices) > 1 else self.work.lengths[output_sequence(model, output)]
        )
        extents = output_extents(model, output, width=self.work.widths[output[0]])
        return tuple(
            (stream_layout(segment.cells, e, base=stage.base, length=length), is_expert_choice(e))
            for e in extents
        )

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
                flow.outputs[edge.run, edge.operator] = flow.received[number] = identity
        for node, then in in_turn(nodes):
            yield from self.around.begin(node, TaskKind.F, then=then)
            yield from self._node_forward(node, place, flow)
            yield from self.around.end(node, weights=False)
        if self.balancer is not None and part == len(self.work.slices[lane]) - 1:
            yield from self.balancer.post(lane, chunk, microbatch)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.source == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                identity = flow.outputs[edge.run, edge.operator]
                value = yield from self._moved(
                    flow.values[identity], flow.layouts[identity], source, ("out", number, *place)
                )
                yield from self._post(value, source, target, ("F", number, lane, microbatch, part))
        # What backward needs of a value, its reader has saved.
        flow.values = {
            i: tuple(None if v is None else shape_placeholder(v) for v in values)
            for i, values in flow.values.items()
        }

    def _edge_layouts(self, lane: int, edge: StageEdge, part: int) -> tuple[Layouts, Layouts]:
        """Layouts of an edge's tensors on both sides."""
        source, target = (self.work.stages[lane][chunk] for chunk in (edge.source, edge.target))
        made, read = edge_segments(edge, source, target, model=self.work.model)
        output = (edge.run, edge.operator)
        return self._lying(output, made, source, part=part), self._lying(
            output, read, target, part=part
        )

    def _moved(
        self, values: Gradients, sources: Layouts, wanted: Layouts, key: Key, *, back: bool = False
    ) -> Task[Gradients]:
        """Every extent in another layout; `back`: cotangents, which whole numbers have not."""
        found: list[torch.Tensor | None] = []
        for index, (value, (source, numbers), (there, _)) in enumerate(
            zip(values, sources, wanted, strict=True)
        ):
            dtype, on = torch.int64 if numbers else self.store.precision.compute, self.store.on
            if back and numbers:
                found.append(None)
            else:
                found.append(
                    (
                        yield from moved(
                            value,
                            source,
                            there,
                            device=self.device,
                            key=_of(key, index),
                            dtype=dtype,
                            on=on,
                        )
                    )
                )
        return tuple(found)

    def _post(
        self, values: Gradients, sources: Layouts, wanted: Layouts, key: Key, *, back: bool = False
    ) -> Task[None]:
        for index, (value, (source, numbers), (there, _)) in enumerate(
            zip(values, sources, wanted, strict=True)
        ):
            if any(h.device == self.device for h in source) and not (back and numbers):
                given, own = (value,) if value is not None else (), _of(key, index)
                self.halfway[own] = yield from post(
                    given, source, there, device=self.device, key=own
                )

    def _take(
        self, sources: Layouts, wanted: Layouts, key: Key, *, back: bool = False
    ) -> Task[Gradients]:
        found: list[torch.Tensor | None] = []
        for index, ((source, numbers), (there, _)) in enumerate(zip(sources, wanted, strict=True)):
            if not any(h.device == self.device for h in there) or (back and numbers):
                found.append(None)
            else:
                dtype = torch.int64 if numbers else self.store.precision.compute
                found.append((yield from self._take_one(source, there, _of(key, index), dtype)))
        return tuple(found)

    def _take_one(
        self, source: Layout, wanted: Layout, key: Key, dtype: torch.dtype
    ) -> Task[torch.Tensor | None]:
        given, on = self.halfway.pop(key, None), self.store.on
        found = yield from take(
            given, source, wanted, device=self.device, key=key, dtype=dtype, on=on
        )
        return found[0] if found else None

    def _inputs(self, node: Node, place: Turn, flow: _Flow) -> Task[Inputs]:
        """The inputs of a node, in its own cells."""
        stage = self.work.stages[place[0]][place[1]]
        found: dict[str, Gradients] = {}
        for which, (name, output) in enumerate(node.reads):
            identity = flow.outputs[output]
            wanted = self._lying(output, node.segment, stage, part=place[3])
            key = ("in", which, node.number, *place)
            found[name] = yield from self._moved(
                flow.values[identity], flow.layouts[identity], wanted, key
            )
        return found

    def _node_forward(self, node: Node, place: Turn, flow: _Flow) -> Task[None]:
        stage = self.work.stages[place[0]][place[1]]
        inputs = yield from self._inputs(node, place, flow)
        sources = {name: flow.outputs[output] for name, output in node.reads}
        run = self._run(node, place)
        readers = [one for one in (self.balancer, self.loads) if one is not None]
        routed: Routed | None = {} if readers else None
        value, state = yield from run_forward(
            run, inputs, self.store, self.losses, self._past(place, node), routed=routed
        )
        for one in readers:
            one.add(place, node, routed or {}, base=stage.base)
        state.sources = sources
        if node.recomputed and has_backward(node.block):
            state.forget(inputs)
        elif node.hosted:
            send_away(run, state)
        flow.states[node.number] = state
        flow.values[node.number] = value
        flow.layouts[node.number] = self._lying(node.makes, node.segment, stage, part=place[3])
        flow.outputs[node.makes] = node.number

    def again(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Run forward again what was not kept."""
        place = (lane, chunk, microbatch, part)
        flow = self.flows[place]
        for node, then in in_turn(stage_nodes(self.work.stages[lane][chunk], self.work.model)):
            yield from self.around.begin(node, TaskKind.R, then=then)
            yield from self._node_again(node, place, flow)
            yield from self.around.end(node, weights=False)

    def _node_again(self, node: Node, place: Turn, flow: _Flow) -> Task[None]:
        state = flow.states[node.number]
        bring_back(state)
        if state.forgotten:
            run = self._run(node, place)
            _, fresh = yield from run_forward(
                run, state.inputs, self.store, {}, self._past(place, node)
            )
            fresh.sources = state.sources
            flow.states[node.number] = fresh
        elif state.lacking:
            yield from run_again(self._run(node, place), state, self.store, self._past(place, node))

    def backward(
        self, lane: int, chunk: int, microbatch: int, part: int, *, whole: bool = False
    ) -> Task[None]:
        """Take cotangents of what went out, run every node back, post cotangents of what came in.

        What was not kept is made again node by node. `whole`: with weight gradients, so that a node
        is forgotten before the next.
        """
        place = (lane, chunk, microbatch, part)
        stage, flow = self.work.stages[lane][chunk], self.flows[place]
        if self.balancer is not None:
            flow.balance = yield from self.balancer.balance(lane, chunk, microbatch)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.source == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                back = yield from self._take(
                    target, source, ("B", number, lane, microbatch, part), back=True
                )
                identity = flow.outputs[edge.run, edge.operator]
                back = yield from self._moved(
                    back, source, flow.layouts[identity], ("back", number, *place), back=True
                )
                self._add(flow, identity, back)
        for node, then in in_turn(stage_nodes(stage, self.work.model)[::-1]):
            yield from self.around.begin(node, TaskKind.B if whole else TaskKind.I, then=then)
            yield from self._node_again(node, place, flow)
            yield from self._node_backward(node, place, flow)
            if whole:
                yield from run_weights(
                    self._run(node, place), flow.states.pop(node.number), self.store
                )
            yield from self.around.end(node, weights=whole)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.target == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                value = _whole(
                    flow.cotangents.get(flow.received[number], ()),
                    flow.values[flow.received[number]],
                )
                yield from self._post(
                    value, target, source, ("B", number, lane, microbatch, part), back=True
                )
        if whole:
            del self.flows[place]

    def both(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """A whole backward. Cotangents leave before weight gradients are computed, unless a layer
        is to be done with before the next: where something is made again, brought back or gathered.
        """
        nodes = stage_nodes(self.work.stages[lane][chunk], self.work.model)
        whole = self.around.works or any(
            node.recomputed or node.again or node.hosted for node in nodes
        )
        yield from self.backward(lane, chunk, microbatch, part, whole=whole)
        if not whole:
            yield from self.weights(lane, chunk, microbatch, part)

    def _add(self, flow: _Flow, identity: int, gradients: Gradients) -> None:
        known = flow.cotangents.get(identity, ())
        pairs = zip_longest(known, gradients)
        flow.cotangents[identity] = tuple(
            b if a is None else a if b is None else a + b for a, b in pairs
        )

    def _node_backward(self, node: Node, place: Turn, flow: _Flow) -> Task[None]:
        if not has_backward(node.block):
            return
        constant = without_gradient(node.block)
        stage = self.work.stages[place[0]][place[1]]
        state = flow.states[node.number]
        gradients = _whole(flow.cotangents.pop(node.number, ()), flow.values[node.number])
        found = yield from run_backward(
            self._run(node, place),
            state,
            gradients,
            self.store,
            self._past(place, node),
            balance=flow.balance,
        )
        for which, (name, output) in (
            (i, read) for i, read in enumerate(node.reads) if read[0] not in constant
        ):
            identity = state.sources[name]
            lying = self._lying(output, node.segment, stage, part=place[3])
            back = (*found[name], *(None,) * (len(lying) - len(found[name])))
            given = yield from self._moved(
                back, lying, flow.layouts[identity], ("give", which, node.number, *place), back=True
            )
            self._add(flow, identity, given)

    def weights(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Weight gradients of every node; the microbatch is then forgotten."""
        place = (lane, chunk, microbatch, part)
        flow = self.flows.pop(place)
        for node, then in in_turn(
            stage_nodes(self.work.stages[lane][chunk], self.work.model)[::-1]
        ):
            yield from self.around.begin(node, TaskKind.W, then=then)
            yield from run_weights(self._run(node, place), flow.states[node.number], self.store)
            yield from self.around.end(node, weights=True)


def in_turn(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, Node | None]]:
    """Each with the one that comes next; None behind the last."""
    return zip_longest(nodes, nodes[1:])


def _of(key: Key, index: int) -> Key:
    """The key of an extent's move."""
    return (*key, index) if index else key


def _whole(gradients: Gradients, values: Gradients) -> Gradients:
    """Gradients of all extents of a value, zeros for those that nobody read; None for whole numbers
    and what is not here.
    """
    found: list[torch.Tensor | None] = []
    for gradient, value in zip_longest(gradients, values):
        if gradient is None and value is not None and value.is_floating_point():
            gradient = value.new_zeros(value.shape)
        found.append(gradient)
    return tuple(found)


Walking = Callable[[int, DeviceWork, Batch, ParameterStore], Walker]
"""What makes a device's walker of a step: `Walker` itself, or one that does something else where it
computes."""
