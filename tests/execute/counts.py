"""What a plan's Program says that each device does in a step, and what the executed trace says, both as integers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from shardwright.collectives.algorithm import Collective
from shardwright.cost.plan_costs import cell_rows
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.place import Place
from shardwright.execute.requests import Task
from shardwright.execute.step import prepare
from shardwright.execute.trace import Moved
from shardwright.job.training import TrainingJob
from shardwright.model.graph import Model
from shardwright.model.operator import Operator, OperatorKind
from shardwright.program.block import BlockProgram, Kernel, Phase
from shardwright.program.cell_structure import CellStructure
from shardwright.program.local_size import Context
from shardwright.program.lower_block import lower_block
from shardwright.program.plan_sync import plan_holdings
from shardwright.program.sizes import evaluate_sum
from shardwright.program.stage_edges import EdgeCache, edge_extents, edge_messages, edge_segments
from shardwright.program.unfold import gemm_flops
from shardwright.runtime.registry import DEFAULT, load_runtime
from shardwright.strategy.plan import Plan

Entry = tuple[int, str, str, tuple[int, ...]]
"""(device, phase, kind, group)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """One layer of one stage on one device."""

    device: int
    base: int
    layers: int
    turns: int
    program: BlockProgram
    degrees: dict[str, Any]


def lowered(model: Model, job: TrainingJob, plan: Plan) -> Iterator[Lowered]:
    """Every layer on every device, as `lower_block` says it; elements are one byte, so that bytes are elements."""
    work, _ = prepare(model, job, plan)
    for lane, stages in zip(plan.lanes, work.stages, strict=True):
        for stage in stages:
            for segment in stage.segments:
                length = work.lengths[segment.block.sequence]
                context = Context(
                    tokens=length,
                    memory_tokens=work.lengths.get(segment.block.memory, 0),
                    element=1,
                    gemm_element=1,
                    runtime=load_runtime(DEFAULT),
                    dropout=False,
                    imbalance_percent=100,
                )
                for device in stage.devices:
                    structure = CellStructure(stage=segment.cells, device=device - stage.base, length=length)
                    yield Lowered(
                        device=device,
                        base=stage.base,
                        layers=segment.count,
                        turns=lane.microbatches * segment.count,
                        program=lower_block(segment.block, structure, context),
                        degrees=dict(cell_rows(structure, shape=(1, 1), contributions=1).degrees()),
                    )


def lowered_moves(model: Model, job: TrainingJob, plan: Plan) -> Counter[Entry]:
    """Elements of full buffers of all communication inside layers; inputs gathered again for weight gradients are left out."""
    total: Counter[Entry] = Counter()
    for one in lowered(model, job, plan):
        for move in one.program.moves:
            if len(move.group) > 1 and move.phase is not Phase.W:
                group = tuple(sorted(d + one.base for d in move.group))
                hops = len(group) - 1 if move.hops else 1
                kind = next(o.kind for o in one.program.operators if o.name == move.operator)
                # Statistics of losses and norms are counted in 4 bytes each, whatever an activation has.
                size = 4 if kind in (OperatorKind.LOSS, OperatorKind.NORM) and move.kind is Collective.ALL_REDUCE else 1
                elements = int(evaluate_sum(move.volume, one.degrees)[0]) * hops // size
                total[one.device, move.phase.value, move.kind.value, group] += elements * one.turns
    return +total


_PHASES = {"F": "F", "exit": "F", "I": "I", "B": "I", "enter": "I"}


def traced_moves(records: list[Moved]) -> Counter[Entry]:
    """The same of a trace: messages of one step are one send, as large as the larger of what the device gives and gets."""
    total: Counter[Entry] = Counter()
    messages: dict[tuple[int, str, Any], list[Moved]] = defaultdict(list)
    for record in records:
        inside = record.key[0] if isinstance(record.key, tuple) and isinstance(record.key[0], tuple) else ()
        phase = _PHASES.get(inside[5]) if len(inside) > 5 and isinstance(inside[0], int) else None
        if phase is None:
            continue
        kind = "broadcast" if record.kind == "reduce" else record.kind
        if record.kind in ("send", "receive") and len(record.group) == 2 and not isinstance(record.key[1], tuple):
            messages[record.device, phase, record.key].append(record)
        else:
            total[record.device, phase, kind, record.group] += record.elements
    for (device, phase, _), listed in messages.items():
        group = tuple(sorted({d for one in listed for d in one.group}))
        total[device, phase, "send", group] += max(sum(one.sent for one in listed), sum(one.received for one in listed))
    return +total


def lowered_flops(model: Model, job: TrainingJob, plan: Plan) -> Counter[tuple[int, str, str]]:
    """FLOPs of products by (device, operator, phase) of a step."""
    total: Counter[tuple[int, str, str]] = Counter()
    for one in lowered(model, job, plan):
        for work in one.program.works:
            if work.kernel in (Kernel.GEMM, Kernel.GROUPED_GEMM):
                total[one.device, work.operator, work.phase.value] += gemm_flops(work, one.degrees) * one.turns
    return +total


def lowered_parameters(model: Model, job: TrainingJob, plan: Plan) -> Counter[int]:
    """Elements of parameters that each device holds, tied ones with their owners; every use of a layer on a device counts."""
    total: Counter[int] = Counter()
    for one in lowered(model, job, plan):
        count = sum(int(evaluate_sum((s.elements,), one.degrees)[0]) for s in one.program.stored if not s.tied)
        total[one.device] += count * one.layers
    return +total


def lowered_messages(model: Model, job: TrainingJob, plan: Plan) -> Counter[tuple[str, int, int]]:
    """(way, from, to) -> elements of all messages between stages in a step."""
    work, _ = prepare(model, job, plan)
    total: Counter[tuple[str, int, int]] = Counter()
    for number, lane in enumerate(plan.lanes):
        for edge in work.edges[number]:
            source, target = work.stages[number][edge.source], work.stages[number][edge.target]
            length = work.lengths[model.blocks[model.runs[edge.run].block].sequence]
            both = edge_messages(
                source,
                target,
                segments=edge_segments(edge, source, target, model=model),
                extents=edge_extents(edge, model=model),
                length=length,
                island=0,
                minimal=True,
                cache=EdgeCache(),
            )
            for way, found in zip("FB", both, strict=True):
                for a, b, elements in found.sends.tolist():
                    total[way, a + found.base, b + found.base] += elements * lane.microbatches
    return +total


def traced_messages(records: list[Moved]) -> Counter[tuple[str, int, int]]:
    """The same of a trace."""
    total: Counter[tuple[str, int, int]] = Counter()
    for record in records:
        inside = record.key[0] if isinstance(record.key, tuple) else ()
        if record.kind == "send" and isinstance(inside, tuple) and inside and inside[0] in ("F", "B"):
            (other,) = set(record.group) - {record.device}
            total[inside[0], record.device, other] += record.elements
    return +total


def lowered_sums(model: Model, job: TrainingJob, plan: Plan) -> Counter[tuple[int, tuple[int, ...]]]:
    """(device, group) -> elements of gradients that it sums with the group in a step."""
    work, _ = prepare(model, job, plan)
    found = plan_holdings(work.stages, model=model, length=job.sequence_length, island=0)
    total: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for (*_, device), held in found.items():
        for one in held:
            if one.trainable and len(one.group) > 1:
                total[device, one.group] += one.elements * one.layers
    return +total


def traced_sums(records: list[Moved]) -> Counter[tuple[int, tuple[int, ...]]]:
    """The same of a trace."""
    total: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for record in records:
        if isinstance(record.key, tuple) and record.key[0] == "gradient":
            total[record.device, record.group] += record.elements
    return +total


class CountedProducts:
    """Stands for `numerics_of`: counts the FLOPs that linear and expert operators run, by (device, operator, phase)."""

    def __init__(self) -> None:
        self.flops: Counter[tuple[int, str, str]] = Counter()

    def __call__(self, operator: Operator) -> Any:
        found = numerics_of(operator)
        return _Counted(found, self.flops) if operator.kind in (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR) else found


@dataclass(frozen=True, slots=True)
class _Counted:
    inner: Any
    flops: Counter[tuple[int, str, str]]

    def _count(self, place: Place, phase: str, task: Task[Any]) -> Task[Any]:
        yield from ()
        with FlopCounterMode(display=False) as mode:
            try:
                next(task)
            except StopIteration as end:
                result = end.value
        self.flops[place.device, place.operator.name, phase] += mode.get_total_flops()
        return result

    def forward(self, place: Place, *given: Any) -> Task[Any]:
        return self._count(place, "F", self.inner.forward(place, *given))

    def input_grad(self, place: Place, *given: Any) -> Task[Any]:
        return self._count(place, "I", self.inner.input_grad(place, *given))

    def weight_grad(self, place: Place, *given: Any) -> Task[Any]:
        return self._count(place, "W", self.inner.weight_grad(place, *given))
