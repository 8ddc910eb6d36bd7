"""Forward, recompute and backward passes of a device's pipeline chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import zip_longest

import torch

from shardwright.execute.device_state.operator_tokens_parameters_and_groups_on_device import (
    DeviceOfStage,
)
from shardwright.execute.device_state.saved_layer_state import (
    BlockRun,
    Inputs,
    LayerState,
    offload_state,
    restore_state,
)
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore
from shardwright.execute.interpreter.count_tokens_per_expert_for_bias import ExpertLoads, Routed
from shardwright.execute.interpreter.earlier_slice_tensors import EarlierSlices
from shardwright.execute.interpreter.gather_and_reduce_hooks import NO_HOOKS, LayerHooks
from shardwright.execute.interpreter.iterate_device_passes_in_order import Turn
from shardwright.execute.interpreter.layer_backward import run_backward, run_weights
from shardwright.execute.interpreter.layer_forward import recompute, run_forward
from shardwright.execute.interpreter.prepared_step import Batch, PreparedStep
from shardwright.execute.interpreter.stage_exchange import Layouts, StageExchange
from shardwright.execute.interpreter.stage_layers import (
    Output,
    StageNode,
    output_extents,
    output_sequence,
    stage_nodes,
)
from shardwright.execute.interpreter.sum_router_counts_for_balancing_loss import Balance, balancer
from shardwright.execute.numerics.base.isolate_operator_of_pipeline_cut_block import (
    is_expert_choice,
)
from shardwright.execute.numerics.base.operator_protocol import Gradients
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    shape_placeholder,
)
from shardwright.execute.numerics.images.check_image_placeholder_tokens import (
    require_image_positions,
)
from shardwright.execute.redistribution.tensor_layouts_at_producer_and_reader import stream_layout
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import TEXT
from shardwright.model.tensors_without_gradient import has_backward, without_gradient
from shardwright.program.stages.stage_messages import StageEdge, edge_segments
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind


@dataclass(slots=True)
class _Flow:
    """State of one microbatch in one chunk on this device.

    It holds values and their layouts by id (every extent of each), states of layers, and the inputs
    that its routers need for the load-balancing loss.
    """

    values: dict[int, Gradients] = field(default_factory=dict)
    layouts: dict[int, Layouts] = field(default_factory=dict)
    states: dict[int, LayerState] = field(default_factory=dict)
    outputs: dict[Output, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    cotangents: dict[int, Gradients] = field(default_factory=dict)
    balance: Balance | None = None


class Walker:
    """One device's state in a step, with one method for each kind of action."""

    def __init__(
        self, device: int, work: PreparedStep, batch: Batch, store: ParameterStore
    ) -> None:
        self.device, self.work, self.store = device, work, store
        require_image_positions(batch, work.model.settings)
        self.batch = {name: tensor.to(store.on) for name, tensor in batch.items()}
        self.flows: dict[Turn, _Flow] = {}
        self.losses: dict[object, torch.Tensor] = {}
        self.exchange = StageExchange(device=device, store=store)
        self.past: dict[object, EarlierSlices] = {}
        self.hooks: LayerHooks = NO_HOOKS
        self.loads: ExpertLoads | None = None
        self.balancer = balancer(
            device,
            work.balances,
            coefficient=store.settings.load_balancing,
            length=work.lengths.get(TEXT, 0),
            on=store.on,
        )

    def _earlier_slices(self, place: Turn, node: StageNode) -> EarlierSlices:
        """Keys, values and states of the microbatch's earlier slices at a node; created empty."""
        return self.past.setdefault((*place[:3], node.number), EarlierSlices())

    def _block_run(self, node: StageNode, place: Turn) -> BlockRun:
        """The computation of one layer for one microbatch slice on this device, with its data."""
        lane, chunk, microbatch, part = place
        stage, work = self.work.stages[lane][chunk], self.work
        block = node.block
        slices = work.slices[lane]
        sliced = len(slices) > 1
        starts = [sum(slices[:i]) for i in range(len(slices))]
        site = DeviceOfStage(
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
        lane_plan = work.lanes[lane]
        samples = lane_plan.samples // lane_plan.microbatches
        first = work.first_sample[lane] + microbatch * samples
        microbatch_data = {
            name: batch_tensor[first : first + samples] for name, batch_tensor in self.batch.items()
        }
        return BlockRun(
            site=site,
            run=node.segment.run,
            layer=node.layer,
            block=block,
            data=microbatch_data,
            key=(lane, chunk, microbatch, part, node.number),
            scale=work.scale,
            again=node.again,
            dropped=node.dropped,
            hosted=node.hosted,
        )

    def _output_layouts(
        self, output: Output, segment: Segment, stage: StageParts, *, part: int
    ) -> Layouts:
        """(layout, True if integers) of each extent of an output, in the cells of `segment`."""
        model, slices = self.work.model, self.work.slices[stage.lane]
        length = (
            slices[part] if len(slices) > 1 else self.work.lengths[output_sequence(model, output)]
        )
        extents = output_extents(model, output, width=self.work.widths[output[0]])
        return tuple(
            (
                stream_layout(segment.cells, e, first_device=stage.base, length=length),
                is_expert_choice(e),
            )
            for e in extents
        )

    def forward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Receive a chunk's inputs, run its layers forward and send its outputs, for one slice."""
        place = (lane, chunk, microbatch, part)
        stage, flow = self.work.stages[lane][chunk], _Flow()
        self.flows[place] = flow
        nodes = stage_nodes(stage, self.work.model)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.target == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                value = yield from self.exchange.receive(
                    source, target, ("F", number, lane, microbatch, part)
                )
                identity = -1 - number
                flow.values[identity], flow.layouts[identity] = value, target
                flow.outputs[edge.run, edge.operator] = flow.received[number] = identity
        for node, then in with_next(nodes):
            yield from self.hooks.begin(node, TaskKind.F, next_node=then)
            yield from self._node_forward(node, place, flow)
            yield from self.hooks.end(node, weights=False)
        if self.balancer is not None and part == len(self.work.slices[lane]) - 1:
            yield from self.balancer.post(lane, chunk, microbatch)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.source == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                identity = flow.outputs[edge.run, edge.operator]
                value = yield from self.exchange.redistribute(
                    flow.values[identity], flow.layouts[identity], source, ("out", number, *place)
                )
                yield from self.exchange.send(
                    value, source, target, ("F", number, lane, microbatch, part)
                )
        # The reader of a value has saved the elements that backward needs.
        flow.values = {
            i: tuple(None if v is None else shape_placeholder(v) for v in values)
            for i, values in flow.values.items()
        }

    def _edge_layouts(self, lane: int, edge: StageEdge, part: int) -> tuple[Layouts, Layouts]:
        """Layouts of an edge's tensors at its source stage and at its target stage."""
        source, target = (self.work.stages[lane][chunk] for chunk in (edge.source, edge.target))
        source_segment, target_segment = edge_segments(edge, source, target, model=self.work.model)
        output = (edge.run, edge.operator)
        return self._output_layouts(
            output, source_segment, source, part=part
        ), self._output_layouts(output, target_segment, target, part=part)

    def _inputs(self, node: StageNode, place: Turn, flow: _Flow) -> Task[Inputs]:
        """The inputs of a node, redistributed to the layouts in its own cells."""
        stage = self.work.stages[place[0]][place[1]]
        inputs: dict[str, Gradients] = {}
        for index, (name, output) in enumerate(node.reads):
            identity = flow.outputs[output]
            layouts = self._output_layouts(output, node.segment, stage, part=place[3])
            key = ("in", index, node.number, *place)
            inputs[name] = yield from self.exchange.redistribute(
                flow.values[identity], flow.layouts[identity], layouts, key
            )
        return inputs

    def _node_forward(self, node: StageNode, place: Turn, flow: _Flow) -> Task[None]:
        """Run one layer forward, and store its output, its state and its router counts."""
        stage = self.work.stages[place[0]][place[1]]
        inputs = yield from self._inputs(node, place, flow)
        sources = {name: flow.outputs[output] for name, output in node.reads}
        run = self._block_run(node, place)
        counters = [counter for counter in (self.balancer, self.loads) if counter is not None]
        routed: Routed | None = {} if counters else None
        value, state = yield from run_forward(
            run, inputs, self.store, self.losses, self._earlier_slices(place, node), routed=routed
        )
        for counter in counters:
            counter.add(place, node, routed or {}, first_device=stage.base)
        state.sources = sources
        if node.recomputed and has_backward(node.block):
            state.keep_inputs_only(inputs)
        elif node.hosted:
            offload_state(run, state)
        flow.states[node.number] = state
        flow.values[node.number] = value
        flow.layouts[node.number] = self._output_layouts(
            node.makes, node.segment, stage, part=place[3]
        )
        flow.outputs[node.makes] = node.number

    def recompute_forward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Restore a chunk's saved tensors for one slice, from the host or by recomputation."""
        place = (lane, chunk, microbatch, part)
        flow = self.flows[place]
        for node, then in with_next(stage_nodes(self.work.stages[lane][chunk], self.work.model)):
            yield from self.hooks.begin(node, TaskKind.R, next_node=then)
            yield from self._restore_node(node, place, flow)
            yield from self.hooks.end(node, weights=False)

    def _restore_node(self, node: StageNode, place: Turn, flow: _Flow) -> Task[None]:
        """Restore a layer's saved tensors, from the host or by running its operators again."""
        state = flow.states[node.number]
        restore_state(state)
        if state.only_inputs_kept:
            run = self._block_run(node, place)
            _, new_state = yield from run_forward(
                run, state.inputs, self.store, {}, self._earlier_slices(place, node)
            )
            new_state.sources = state.sources
            flow.states[node.number] = new_state
        elif state.is_incomplete:
            yield from recompute(
                self._block_run(node, place), state, self.store, self._earlier_slices(place, node)
            )

    def backward(
        self,
        lane: int,
        chunk: int,
        microbatch: int,
        part: int,
        *,
        with_weight_gradients: bool = False,
    ) -> Task[None]:
        """Run a chunk backward for a slice: receive output gradients, send those of its inputs.

        It receives gradients of the outputs, runs every node backward, and sends gradients of the
        inputs. Outputs that were not kept are computed again node by node. `with_weight_gradients`:
        weight gradients are computed in the same pass, so that the state of a node is freed before
        the next.
        """
        place = (lane, chunk, microbatch, part)
        stage, flow = self.work.stages[lane][chunk], self.flows[place]
        if self.balancer is not None:
            flow.balance = yield from self.balancer.balance(lane, chunk, microbatch)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.source == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                output_grads = yield from self.exchange.receive(
                    target, source, ("B", number, lane, microbatch, part), are_gradients=True
                )
                identity = flow.outputs[edge.run, edge.operator]
                output_grads = yield from self.exchange.redistribute(
                    output_grads,
                    source,
                    flow.layouts[identity],
                    ("back", number, *place),
                    are_gradients=True,
                )
                self._add(flow, identity, output_grads)
        for node, then in with_next(stage_nodes(stage, self.work.model)[::-1]):
            yield from self.hooks.begin(
                node, TaskKind.B if with_weight_gradients else TaskKind.I, next_node=then
            )
            yield from self._restore_node(node, place, flow)
            yield from self._node_backward(node, place, flow)
            if with_weight_gradients:
                yield from run_weights(
                    self._block_run(node, place), flow.states.pop(node.number), self.store
                )
            yield from self.hooks.end(node, weights=with_weight_gradients)
        for number, edge in enumerate(self.work.edges[lane]):
            if edge.target == chunk:
                source, target = self._edge_layouts(lane, edge, part)
                value = _with_zeros(
                    flow.cotangents.get(flow.received[number], ()),
                    flow.values[flow.received[number]],
                )
                yield from self.exchange.send(
                    value, target, source, ("B", number, lane, microbatch, part), are_gradients=True
                )
        if with_weight_gradients:
            del self.flows[place]

    def full_backward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Run a backward pass with input and weight gradients for one microbatch slice.

        Input gradients are sent before weight gradients are computed, unless each layer must be
        finished before the next: where layers are recomputed, restored from the host or gathered.
        """
        nodes = stage_nodes(self.work.stages[lane][chunk], self.work.model)
        layer_by_layer = self.hooks.works or any(
            node.recomputed or node.again or node.hosted for node in nodes
        )
        yield from self.backward(
            lane, chunk, microbatch, part, with_weight_gradients=layer_by_layer
        )
        if not layer_by_layer:
            yield from self.weight_backward(lane, chunk, microbatch, part)

    def _add(self, flow: _Flow, identity: int, gradients: Gradients) -> None:
        """Add gradients to the gradients that a value has received from its other readers."""
        present = flow.cotangents.get(identity, ())
        pairs = zip_longest(present, gradients)
        flow.cotangents[identity] = tuple(
            b if a is None else a if b is None else a + b for a, b in pairs
        )

    def _node_backward(self, node: StageNode, place: Turn, flow: _Flow) -> Task[None]:
        """Compute one layer's input gradients and add them to those of the values it read."""
        if not has_backward(node.block):
            return
        constant = without_gradient(node.block)
        stage = self.work.stages[place[0]][place[1]]
        state = flow.states[node.number]
        gradients = _with_zeros(flow.cotangents.pop(node.number, ()), flow.values[node.number])
        input_grads = yield from run_backward(
            self._block_run(node, place),
            state,
            gradients,
            self.store,
            self._earlier_slices(place, node),
            balance=flow.balance,
        )
        for index, (name, output) in (
            (i, read) for i, read in enumerate(node.reads) if read[0] not in constant
        ):
            identity = state.sources[name]
            layouts = self._output_layouts(output, node.segment, stage, part=place[3])
            extent_grads = (*input_grads[name], *(None,) * (len(layouts) - len(input_grads[name])))
            moved_grads = yield from self.exchange.redistribute(
                extent_grads,
                layouts,
                flow.layouts[identity],
                ("give", index, node.number, *place),
                are_gradients=True,
            )
            self._add(flow, identity, moved_grads)

    def weight_backward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Compute the weight gradients of every layer of a chunk, then drop its saved state."""
        place = (lane, chunk, microbatch, part)
        flow = self.flows.pop(place)
        for node, then in with_next(
            stage_nodes(self.work.stages[lane][chunk], self.work.model)[::-1]
        ):
            yield from self.hooks.begin(node, TaskKind.W, next_node=then)
            yield from run_weights(
                self._block_run(node, place), flow.states[node.number], self.store
            )
            yield from self.hooks.end(node, weights=True)


def with_next(nodes: tuple[StageNode, ...]) -> Iterator[tuple[StageNode, StageNode | None]]:
    """Iterate over pairs of each node and the node after it; None after the last."""
    return zip_longest(nodes, nodes[1:])


def _with_zeros(gradients: Gradients, values: Gradients) -> Gradients:
    """Gradients of all extents of a value, with zeros for floating-point extents that no one reads.

    Integer extents and extents that are not on this device have None.
    """
    filled: list[torch.Tensor | None] = []
    for gradient, value in zip_longest(gradients, values):
        if gradient is None and value is not None and value.is_floating_point():
            gradient = value.new_zeros(value.shape)
        filled.append(gradient)
    return tuple(filled)
