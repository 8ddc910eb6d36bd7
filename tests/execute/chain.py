"""A whole model on one device: its operators one after another, once by the numerics and once by
the reference under torch.autograd."""

from __future__ import annotations

from typing import Any

import torch

from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.ir.block import INPUT, MEMORY
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from tests.execute.lockstep import alone, made_weights, place_of
from tests.execute.reference import REFERENCE

Values = tuple[torch.Tensor, ...]


class Chain:
    """The operators of a model in order, each with the numbers of those that it reads. Numbers
    below 0 are token ids and labels.

    Attributes:
        steps: (operator, key of its weights, numbers of its inputs).
    """

    def __init__(self, model: Model) -> None:
        self.steps: list[tuple[Operator, tuple[str, int, str], tuple[int, ...]]] = []
        self.model = model
        ends: dict[str, int] = {}
        for run in model.runs:
            block = model.blocks[run.block]
            source, memory = (
                (ends[run.inputs[0]] if run.inputs else -1),
                (ends[run.inputs[-1]] if run.inputs else -1),
            )
            for layer in range(run.count):
                made = {INPUT: source, MEMORY: memory}
                for operator in block.operators:
                    reads = tuple(made[name] for name in operator.inputs)
                    if operator.kind is OperatorKind.EMBEDDING:
                        reads = (-1,)
                    if operator.kind is OperatorKind.LOSS:
                        reads = (*reads, -2)
                    self.steps.append((operator, (run.name, layer, operator.name), reads))
                    made[operator.name] = len(self.steps) - 1
                source = len(self.steps) - 1
            ends[run.name] = source

    def weights(
        self, generator: torch.Generator
    ) -> dict[tuple[str, int, str], dict[str, torch.Tensor]]:
        """Random weights of every operator (tied ones too, each its own: tying is not an operator's
        business)."""
        return {key: made_weights(operator, generator) for operator, key, _ in self.steps}

    def numbers(
        self, weights: Any, ids: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """(sum of the losses, gradients by operator and name) by the numerics."""
        values: dict[int, Values] = {-1: (ids,), -2: (labels,)}
        saved, losses = {}, []
        for i, (operator, key, reads) in enumerate(self.steps):
            place = self._place(operator, ids)
            values[i], saved[i] = alone(
                numerics_of(operator).forward(place, tuple(values[r] for r in reads), weights[key])
            )
            assert not any(v.requires_grad for v in values[i])
            if operator.kind is OperatorKind.LOSS:
                losses.append(values[i][0].sum())
        grads: dict[int, list[Any]] = {}
        found = {}
        for i, (operator, key, reads) in reversed(list(enumerate(self.steps))):
            place = self._place(operator, ids)
            if operator.kind is OperatorKind.LOSS:
                grads[i] = [torch.ones_like(values[i][0])]
            if i not in grads:
                continue
            own = tuple(grads[i])
            back = alone(numerics_of(operator).input_grad(place, saved[i], own, weights[key]))
            found[key] = alone(
                numerics_of(operator).weight_grad(place, saved[i], own, weights[key])
            )
            for r, parts in zip(reads, back, strict=True):
                if parts is None:
                    continue
                before = grads.get(r, [None] * len(parts))
                grads[r] = [
                    b if p is None else p if b is None else b + p
                    for b, p in zip(before, parts, strict=True)
                ]
                assert all(
                    p is None or p.shape == v.shape for p, v in zip(parts, values[r], strict=True)
                )
        return torch.stack(losses).sum(), found

    def reference(
        self, weights: Any, ids: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """The same by the reference and torch.autograd over the whole model."""
        leaves = {
            key: {n: w.clone().requires_grad_() for n, w in own.items()}
            for key, own in weights.items()
        }
        values: dict[int, Values] = {-1: (ids,), -2: (labels,)}
        losses = []
        for i, (operator, key, reads) in enumerate(self.steps):
            values[i] = REFERENCE[operator.kind](
                operator, tuple(values[r] for r in reads), leaves[key]
            )
            if operator.kind is OperatorKind.LOSS:
                losses.append(values[i][0].sum())
        total = torch.stack(losses).sum()
        total.backward()
        return total.detach(), {
            key: {n: w.grad for n, w in own.items()} for key, own in leaves.items()
        }

    @staticmethod
    def _place(operator: Operator, ids: torch.Tensor) -> Any:
        return place_of(
            operator, length=ids.shape[1], samples=ids.shape[0], memory_length=ids.shape[1]
        )
