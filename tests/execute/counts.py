"""What a plan's Program says that each device does in a step, and what the executed trace says,
both as integers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shardwright.cost.tables.apply_recompute_and_offload_policy import named_operators
from shardwright.cost.tables.plan_block_costs import local_sizes
from shardwright.execute.device_state.decide_operator_inputs_to_gather import is_gathered
from shardwright.execute.device_state.stored_parameter_parts import seeded, whole_shape
from shardwright.execute.interpreter import layer_backward, layer_forward
from shardwright.execute.interpreter.prepared_step import PreparedStep as Known
from shardwright.execute.interpreter.stage_layers import stage_nodes
from shardwright.execute.numerics.attention import attention_operator
from shardwright.execute.numerics.attention.attention_by_key_block import attend_to_keys
from shardwright.execute.numerics.attention.key_value_exchange import KeyBlock
from shardwright.execute.numerics.attention.merge_fused_attention_calls import PartialAttention
from shardwright.execute.numerics.base.operator_protocol import Values, Weights
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.operator_with_autograd_backward import AutogradOperator
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.proof.model_with_divided_widths import narrowest_model
from shardwright.execute.proof.prove_plan import random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    StepResult,
    run_step,
)
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.execute.transport.communication_record import CommunicationRecord, SentElements
from shardwright.execute.transport.communication_requests import Answer, Task
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.block.block_program import BlockProgram, BlockWork, KernelKind, Move, Phase
from shardwright.program.block.local_token_and_tensor_sizes import LoweringContext
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure
from shardwright.program.block.symbolic_sizes import evaluate, evaluate_sum
from shardwright.program.stages.held_parameters import plan_holdings
from shardwright.program.stages.stage_messages import edge_extents, edge_messages, edge_segments
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.runtime_registry import DEFAULT, load_runtime
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy
from tests.program.unfold import gemm_flops

Entry = tuple[int, str, str, tuple[int, ...]]
"""(device, phase, kind, group)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A small model under a plan, and what all devices know of its step."""

    model: Model
    job: TrainingJob
    plan: Plan
    work: Known


def problem_of(plan: Plan, *, model: Model, job: TrainingJob) -> Problem:
    """Of a small model with the structure of `model`.

    Raises:
        StrategyError: the plan cannot be executed.
    """
    small = narrowest_model(plan, model=model)
    return Problem(model=small, job=job, plan=plan, work=prepare_step(small, job, plan)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a step did: requests, FLOPs, and by device the elements of parameters that it holds."""

    records: list[SentElements]
    flops: Counter[tuple[int, str, str]]
    parameters: Counter[int]


def ran(problem: Problem) -> Ran:
    """Run a step, with experts chosen in turn."""
    trace, products = CommunicationRecord(), CountedProducts()
    source, batch = seeded(problem.model, seed=0), random_batch(problem.model, problem.job, seed=0)
    with (
        mock.patch.object(layer_forward, "numerics_of", products),
        mock.patch.object(layer_backward, "numerics_of", products),
        mock.patch.object(attention_operator, "attend_to_keys", products.met),
    ):
        result = run_step(
            problem.model, problem.job, problem.plan, batch=batch, source=source, trace=trace
        )
    assert all(run <= products.flops[key] for key, run in products.cores.items()), (
        "a core computes no more than what it meets"
    )
    return Ran(records=trace.records, flops=+products.flops, parameters=_held(result))


def _held(result: StepResult) -> Counter[int]:
    """Elements that a device holds: once where two of its uses need parts that overlap."""
    total: Counter[int] = Counter()
    for device, store in result.stores.items():
        for key, boxes in store.held.items():
            here = torch.zeros(whole_shape(store.model, key), dtype=torch.bool)
            for box in boxes:
                here[
                    torch.meshgrid(
                        *(torch.cat([torch.arange(a, b) for a, b in dim]) for dim in box),
                        indexing="ij",
                    )
                ] = True
            total[device] += int(here.sum())
    return total


Node = tuple[int, int, int]
"""(lane, chunk, number) of a layer of a stage."""
ELEMENT = 4
"""Bytes of an activation in the lowered counts: as many as a statistic of a norm or a loss has, so
that all are counted in elements."""


@lru_cache(maxsize=1)
def runtime() -> Runtime:
    """What executes here: gathered inputs are kept for the weight gradient."""
    return replace(load_runtime(DEFAULT), tp_input_regather=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """One layer of one stage on one device, of one slice.

    Args:
        nodes: (lane, chunk, number) of its layers.
        turns: how often it runs in a step.
        length: positions of the slice.
        again: operators whose forward runs twice;
        moved: so does what moves there.
    """

    nodes: frozenset[Node]
    device: int
    base: int
    layers: int
    turns: int
    length: int
    again: frozenset[str]
    moved: bool
    structure: CellStructure
    program: BlockProgram
    degrees: dict[str, Any]

    def times(self, phase: Phase, operator: str = "") -> int:
        """How often tasks of a phase run in a step; without an operator what moves."""
        twice = operator in self.again if operator else self.moved
        return self.turns * (2 if twice and phase is Phase.F else 1)


def lowered(problem: Problem) -> Iterator[Lowered]:
    """Every layer on every device, as `lower_block` says it."""
    for lane, stages, slices in zip(
        problem.plan.lanes, problem.work.stages, problem.work.slices, strict=True
    ):
        for stage in stages:
            for segment in stage.segments:
                whole = problem.work.lengths[segment.block.sequence]
                parts = slices if len(slices) > 1 else (whole,)
                redone = [k.operators for k in segment.keeps if k.how is ActivationPolicy.RECOMPUTE]
                full = any("full" in names for names in redone)
                names = {o.name for o in segment.block.operators} if full else set()
                again = names.union(
                    *(named_operators(segment.block.operators, one) for one in redone)
                )
                for number, length in enumerate(parts):
                    context = LoweringContext(
                        tokens=length,
                        memory_tokens=problem.work.lengths.get(segment.block.memory, 0),
                        element=ELEMENT,
                        gemm_element=ELEMENT,
                        compute_bits=8 * ELEMENT,
                        runtime=runtime(),
                        dropout=False,
                        imbalance_percent=100,
                        before=parts[:number],
                    )
                    nodes = frozenset(
                        (stage.lane, stage.chunk, n.number)
                        for n in stage_nodes(stage, problem.model)
                        if n.segment is segment
                    )
                    for device in stage.devices:
                        structure = CellStructure(
                            stage=segment.cells, device=device - stage.base, length=length
                        )
                        yield Lowered(
                            nodes=nodes,
                            device=device,
                            base=stage.base,
                            layers=segment.count,
                            turns=lane.microbatches * segment.count,
                            length=length,
                            again=frozenset(again),
                            moved=full,
                            structure=structure,
                            program=lower_block(segment.block, structure, context),
                            degrees=dict(local_sizes(structure)),
                        )


def moves_otherwise(problem: Problem) -> frozenset[Node]:
    """Layers whose moves lowering prices in another form (docs/execution.md): single operators of
    theirs run again, or the parts of a core, convolution or recurrence do not match one to one."""
    lengths, found = problem.work.lengths, set()
    for stage in (stage for lane in problem.work.stages for stage in lane):
        for node in stage_nodes(stage, problem.model):
            s = node.segment
            own, memory = lengths[s.block.sequence], lengths.get(s.block.memory, 0)
            spread = any(
                is_gathered(s.cells, o, length=own, memory_length=memory) for o in s.block.operators
            )
            if spread or any(
                set(k.operators) - {"full", "core"}
                for k in s.keeps
                if k.how is ActivationPolicy.RECOMPUTE
            ):
                found.add((stage.lane, stage.chunk, node.number))
    return frozenset(found)


def lowered_moves(problem: Problem, *, without: frozenset[Node] = frozenset()) -> Counter[Entry]:
    """Elements of full buffers of all communication inside layers, without tokens on their way to
    experts and back, and some layers."""
    total: Counter[Entry] = Counter()
    for one in (one for one in lowered(problem) if not one.nodes & without):
        for move in one.program.moves:
            if len(move.group) > 1 and not _expert(move):
                group = tuple(sorted(d + one.base for d in move.group))
                hops = len(group) - 1 if move.hops else 1
                size = int(evaluate_sum(move.volume, one.degrees)[0]) * hops
                within = (
                    move.operator if move.axes == ("ring",) else ""
                )  # a core that runs again exchanges its keys again
                total[one.device, move.phase.value, move.kind.value, group] += size * one.times(
                    move.phase, within
                )
    return +Counter({entry: size // ELEMENT for entry, size in total.items()})


def _expert(move: Move) -> bool:
    return move.axes in (("ep",), ("etp",))


def lowered_routed(problem: Problem) -> Counter[tuple[int, str]]:
    """(device, phase) -> elements that it sends or gets, whichever is more, of tokens on their way
    to experts and back."""
    total: Counter[tuple[int, str]] = Counter()
    for one in lowered(problem):
        for move in one.program.moves:
            if len(move.group) > 1 and _expert(move):
                copies = _copies(move, one)
                width = (
                    int(evaluate_sum(move.volume, one.degrees)[0]) // (copies * ELEMENT)
                    if copies
                    else 0
                )
                if width > 1:  # not the copies' weights, which stay with the tokens here
                    # A buffer that is not shared out evenly is rounded up to whole copies.
                    sent = copies * (len(move.group) - 1) // len(move.group)
                    total[one.device, move.phase.value] += sent * width * one.times(move.phase)
    return +total


def _copies(move: Move, one: Lowered) -> int:
    """Copies of tokens in the full buffer of a move."""
    expert = next(o for o in one.program.operators if o.name == move.operator)
    count = one.structure.sent_copies if move.axes == ("ep",) else one.structure.gathered_copies
    return int(evaluate(count(expert, one.length), one.degrees)[0])


def traced_routed(records: list[SentElements]) -> Counter[tuple[int, str]]:
    """The same of a trace."""
    total: Counter[tuple[int, str]] = Counter()
    for record in records:
        if _routed(record) and record.key[1][1] in _WAYS:  # type: ignore[index]
            total[record.device, record.key[0][5]] += max(record.sent, record.received)  # type: ignore[index]
    return +total


_PHASES = {"F": "F", "exit": "F", "I": "I", "B": "I", "enter": "I"}


def traced_moves(
    records: list[SentElements], *, without: frozenset[Node] = frozenset()
) -> Counter[Entry]:
    """The same of a trace: messages of one step are one send, as large as the larger of what the
    device gives and gets."""
    total: Counter[Entry] = Counter()
    messages: dict[tuple[int, str, Any], list[SentElements]] = defaultdict(list)
    for record in records:
        inside = (
            record.key[0]
            if isinstance(record.key, tuple) and isinstance(record.key[0], tuple)
            else ()
        )
        phase = _PHASES.get(inside[5]) if len(inside) > 5 and isinstance(inside[0], int) else None
        if (
            phase is None
            or _routed(record)
            or _told(record)
            or (inside[0], inside[1], inside[4]) in without
        ):
            continue
        kind = "broadcast" if record.kind == "reduce" else record.kind
        if (
            record.kind in ("send", "receive")
            and len(record.group) == 2
            and not isinstance(record.key[1], tuple)
        ):
            messages[record.device, phase, record.key].append(record)
        else:
            total[record.device, phase, kind, record.group] += record.elements
    for (device, phase, _), listed in messages.items():
        group = tuple(sorted({d for one in listed for d in one.group}))
        total[device, phase, "send", group] += max(
            sum(one.sent for one in listed), sum(one.received for one in listed)
        )
    return +total


_WAYS = ("rows", "rows back", "gradients", "gradients back")


def _routed(record: SentElements) -> bool:
    """Tokens on their way to experts or back, or how many and which they are."""
    asked = record.key[1] if isinstance(record.key, tuple) else ()
    return (
        isinstance(asked, tuple)
        and len(asked) == 2
        and str(asked[1])
        in (*_WAYS, "rows sizes", "rows routes", "gradients sizes", "gradients routes")
    )


def _told(record: SentElements) -> bool:
    """How many devices have each head of a norm: a plan says so, and no run need ask."""
    asked = record.key[1] if isinstance(record.key, tuple) else ()
    return isinstance(asked, tuple) and len(asked) == 2 and str(asked[1]).startswith("copies.")


def lowered_flops(problem: Problem) -> Counter[tuple[int, str, str]]:
    """FLOPs of products, and of cores in forward, by (device, operator, phase) of a step."""
    total: Counter[tuple[int, str, str]] = Counter()
    for one in lowered(problem):
        for work in one.program.works:
            if work.kernel in (KernelKind.GEMM, KernelKind.GROUPED_GEMM):
                total[one.device, work.operator, work.phase.value] += gemm_flops(
                    work, one.degrees
                ) * one.times(work.phase, work.operator)
            elif work.kernel is KernelKind.ATTENTION and work.phase is Phase.F:
                total[one.device, work.operator, work.phase.value] += _core_flops(
                    work, one
                ) * one.times(work.phase, work.operator)
    return +total


def _core_flops(work: BlockWork, one: Lowered) -> int:
    """Of every query with every key up to the slice's end, whatever the mask."""
    shape = work.attention
    assert shape is not None
    assert work.tokens is not None
    assert work.heads is not None
    keys = work.context if shape.cross else (work.context + one.length) // 2
    tokens, heads = (int(evaluate(size, one.degrees)[0]) for size in (work.tokens, work.heads))
    return 2 * tokens * heads * keys * (shape.head_dim + shape.value_dim)


def lowered_parameters(problem: Problem) -> Counter[int]:
    """Elements of parameters that each device holds: what its layers store in union, and each tied
    one once."""
    found = plan_holdings(
        problem.work.stages, model=problem.model, length=problem.job.sequence_length, islands=None
    )
    total: Counter[int] = Counter()
    for (*_, device), held in found.items():
        total[device] += sum(one.elements * one.layers for one in held)
    return total


Border = tuple[str, str, tuple[int, ...]]
"""(way, kind, devices) between two stages: (from, to) of messages, the sorted group of collectives
on one side."""


def lowered_messages(problem: Problem) -> Counter[Border]:
    """Elements of all that moves between stages in a step, slice by slice; of collectives the full
    buffers."""
    total: Counter[Border] = Counter()
    model, work = problem.model, problem.work
    for number, lane in enumerate(problem.plan.lanes):
        for edge in work.edges[number]:
            source, target = work.stages[number][edge.source], work.stages[number][edge.target]
            slices = work.slices[number]
            whole = work.lengths[model.blocks[model.runs[edge.run].block].sequence]
            for length in slices if len(slices) > 1 else (whole,):
                both = edge_messages(
                    source,
                    target,
                    segments=edge_segments(edge, source, target, model=model),
                    extents=edge_extents(edge, model=model),
                    length=length,
                    islands=None,
                    minimal=True,
                )
                for way, found in zip("FB", both, strict=True):
                    for a, b, elements in found.sends.tolist():
                        total[way, "send", (a + found.base, b + found.base)] += (
                            elements * lane.microbatches
                        )
                    for kind, group, elements in found.collectives:
                        total[way, kind.value, tuple(sorted(d + found.base for d in group))] += (
                            elements * lane.microbatches
                        )
    return +total


def traced_messages(records: list[SentElements]) -> Counter[Border]:
    """The same of a trace."""
    total: Counter[Border] = Counter()
    for record in records:
        inside = record.key[0] if isinstance(record.key, tuple) else ()
        if not (isinstance(inside, tuple) and inside and inside[0] in ("F", "B")):
            continue
        if record.kind == "send":
            (other,) = set(record.group) - {record.device}
            total[inside[0], "send", (record.device, other)] += record.elements
        elif record.kind != "receive" and record.device == record.group[0]:
            total[
                inside[0], "broadcast" if record.kind == "reduce" else record.kind, record.group
            ] += record.elements
    return +total


def lowered_sums(problem: Problem) -> Counter[tuple[int, tuple[int, ...]]]:
    """(device, group) -> elements of gradients that it sums with the group in a step."""
    found = plan_holdings(
        problem.work.stages, model=problem.model, length=problem.job.sequence_length, islands=None
    )
    total: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for (*_, device), held in found.items():
        for one in held:
            if one.trainable and len(one.group) > 1:
                total[device, tuple(one.group)] += one.elements * one.layers
    return +total


def traced_sums(records: list[SentElements]) -> Counter[tuple[int, tuple[int, ...]]]:
    """The same of a trace; a duplicate that is sent a sum counts as a member of its sender's
    group."""
    total: Counter[tuple[int, tuple[int, ...]]] = Counter()
    groups: dict[tuple[int, object], tuple[int, ...]] = {}
    for record in records:
        if isinstance(record.key, tuple) and record.key[0] == "gradient":
            total[record.device, record.group] += record.elements
            groups[record.device, record.key[1:]] = record.group
    for record in records:
        if record.kind == "receive" and isinstance(record.key, tuple) and record.key[0] == "copy":
            (sender,) = set(record.group) - {record.device}
            whole = groups.get((sender, record.key[1:3]), (sender,))
            total[record.device, tuple(sorted({*whole, record.device}))] += record.elements
    return +total


_COUNTED = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)


class CountedProducts:
    """Stands for `numerics_of`: counts the FLOPs that linear and expert operators run by (device,
    operator, phase), and those of all queries with all keys that they meet in a forward of a core.

    Tokens choose experts in turn, so that all experts have as many. `cores` are the FLOPs that
    cores run: blocks without a visible key are left out.
    """

    def __init__(self) -> None:
        self.flops: Counter[tuple[int, str, str]] = Counter()
        self.cores: Counter[tuple[int, str, str]] = Counter()

    def __call__(self, operator: Operator) -> Any:
        if operator.kind is OperatorKind.ROUTE:
            return AutogradOperator(function=in_turn)
        found = numerics_of(operator)
        if operator.kind is OperatorKind.ATTENTION:
            return _Counted(found, self.cores)
        return _Counted(found, self.flops) if operator.kind in _COUNTED else found

    def met(
        self, place: OperatorShare, query: torch.Tensor, keys: KeyBlock, *more: Any
    ) -> PartialAttention:
        """Stands for what meets a block of keys."""
        assert place.operator.attention is not None
        rows, heads = query.shape[:2].numel() * keys.key.shape[1], place.heads[1] - place.heads[0]
        widths = place.operator.attention.head_dim + place.operator.attention.value_dim
        self.flops[place.device, place.operator.name, "F"] += 2 * rows * heads * widths
        return attend_to_keys(place, query, keys, *more)


def in_turn(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """Choices of experts like `route`'s: the next `topk` of all for each token, all with one
    weight."""
    assert place.operator.experts is not None
    shape, logits = place.operator.experts, inputs[0][0]
    samples, positions = (
        torch.cat([torch.arange(a, b) for a, b in indices])
        for indices in (place.samples, place.positions)
    )
    tokens = (samples.unsqueeze(-1) * place.length + positions).unsqueeze(-1)
    chosen = (tokens * shape.topk + torch.arange(shape.topk)) % shape.experts
    return logits.gather(-1, chosen).sigmoid() / shape.topk, chosen


FUSED_CORE = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
"""PyTorch has a formula for its kernels on accelerators, and none for this one."""


def _core_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    """Of every query with every key of a call, masked or not: as PyTorch counts a core on
    accelerators."""
    return 2 * query.shape[:3].numel() * key.shape[2] * (key.shape[3] + value.shape[3])


class Products(TorchDispatchMode):
    """FLOPs by PyTorch's own formulas: FlopCounterMode without modules, whose searches take as long
    as all the rest of a small step."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so that the compiler, which takes seconds to load, need not be
        kept out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = _core_products if func is FUSED_CORE else flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


@dataclass(frozen=True, slots=True)
class _Counted:
    inner: Any
    flops: Counter[tuple[int, str, str]]

    def _count(self, place: OperatorShare, phase: str, task: Task[Any]) -> Task[Any]:
        answer: Answer = None
        while True:
            with Products() as mode:
                try:
                    request = task.send(answer)
                except StopIteration as end:
                    request, result = None, end.value
            self.flops[place.device, place.operator.name, phase] += mode.total
            if request is None:
                return result
            answer = yield request

    def forward(self, place: OperatorShare, *given: Any) -> Task[Any]:
        return self._count(place, "F", self.inner.forward(place, *given))

    def input_grad(self, place: OperatorShare, *given: Any) -> Task[Any]:
        task = self.inner.input_grad(place, *given)
        return (
            task if place.operator.kind is OperatorKind.ATTENTION else self._count(place, "I", task)
        )

    def weight_grad(self, place: OperatorShare, *given: Any) -> Task[Any]:
        return self._count(place, "W", self.inner.weight_grad(place, *given))
