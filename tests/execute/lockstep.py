"""A tiny transport for tests of operators: devices' generators side by side, and places made by
hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.transport.communication_requests import GroupExchange, Reduce, Reduction
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.tensor_layout import Indices, Interval


def run(tasks: Mapping[int, Any]) -> dict[int, Any]:
    """What each device's task returns; every request must be asked by all of its group, in one
    order."""
    results: dict[int, Any] = {}
    asked: dict[int, Any] = {}

    def advance(device: int, answer: Any) -> None:
        try:
            asked[device] = tasks[device].send(answer)
        except StopIteration as end:
            asked.pop(device, None)
            results[device] = end.value

    for device in tasks:
        advance(device, None)
    while asked:
        ready = next(
            (
                r
                for r in asked.values()
                if all(
                    d in asked and asked[d].key == r.key and asked[d].group == r.group
                    for d in r.group
                )
            ),
            None,
        )
        assert ready is not None, f"deadlock: {asked}"
        answers = _answers({d: asked[d] for d in ready.group})
        for device, answer in answers.items():
            advance(device, answer)
    return results


def _answers(requests: dict[int, Any]) -> dict[int, Any]:
    first = next(iter(requests.values()))
    if isinstance(first, Reduce):
        stacked = torch.stack([r.tensor for r in requests.values()])
        whole = stacked.sum(0) if first.reduction is Reduction.SUM else stacked.amax(0)
        return {d: whole.clone() for d in requests}
    assert isinstance(first, GroupExchange)
    answers = {}
    for device, request in requests.items():
        assert device not in request.sends
        assert device not in request.receives
        answers[device] = {d: requests[d].sends[device].clone() for d in request.receives}
        for d, shape in request.receives.items():
            assert tuple(answers[device][d].shape) == tuple(shape)
    return answers


def alone(task: Any) -> Any:
    """What a task without communication returns."""
    return run({0: task})[0]


def place_of(
    operator: Operator,
    *,
    length: int,
    samples: int = 2,
    device: int = 0,
    positions: Indices = (),
    cuts: Mapping[Dim, Interval] | None = None,
    memory_length: int = 0,
    **more: Any,
) -> OperatorShare:
    """The place of an operator; `cuts`: runs of the finest extent of a dim that the device has (all
    where absent)."""
    cuts = cuts or {}
    attention, scan, experts = operator.attention, operator.scan, operator.experts

    def runs_of(dim: Dim) -> int:
        listed = [e.runs for e in (*operator.reads, *operator.writes) if e.dim is dim]
        listed += [attention.heads] if attention is not None and dim is Dim.HEADS else []
        listed += [scan.heads] if scan is not None and dim is Dim.HEADS else []
        return max(listed, default=1)

    def part(dim: Dim, runs: int, quantum: int) -> Interval:
        if dim not in cuts:
            return (0, runs * quantum)
        low, high = cuts[dim]
        reference = max(runs_of(dim), runs)
        return (low * runs // reference * quantum, -(-high * runs // reference) * quantum)

    heads = (
        part(Dim.HEADS, attention.heads if attention else scan.heads if scan else 0, 1)
        if attention or scan
        else (0, 0)
    )
    return OperatorShare(
        operator=operator,
        device=device,
        samples=((0, samples),),
        positions=positions or ((0, length),),
        length=length,
        reads=tuple(part(e.dim, e.runs, e.quantum) for e in operator.reads),
        writes=tuple(part(e.dim, e.runs, e.quantum) for e in operator.writes),
        parameters={
            p.name: tuple((part(e.dim, e.runs, e.quantum),) for e in p.extents)
            for p in operator.parameters
        },
        heads=heads,
        kv_heads=part(Dim.HEADS, attention.kv_heads, 1) if attention else (0, 0),
        experts=cuts.get(Dim.EXPERTS, (0, experts.experts if experts else 0)),
        memory_positions=more.pop(
            "memory_positions", ((0, memory_length),) if memory_length else ()
        ),
        memory_length=memory_length,
        settings=Settings(),
        groups=more.pop("groups", {}),
        **more,
    )


def made_weights(operator: Operator, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Whole weights of every parameter."""
    return {
        p.name: torch.randn([e.size for e in p.extents], generator=generator, dtype=torch.float64)
        * 0.5
        for p in operator.parameters
    }


def local_weights(
    place: OperatorShare, whole: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The slices that a place has."""
    result = {}
    for name, box in place.parameters.items():
        tensor = whole[name]
        for dim, ((low, high),) in enumerate(box):
            tensor = tensor.narrow(dim, low, high - low)
        result[name] = tensor
    return result


def rows_of(indices: Indices) -> torch.Tensor:
    """The indices, in order."""
    return torch.cat([torch.arange(a, b) for a, b in indices])
