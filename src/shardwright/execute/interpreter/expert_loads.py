"""Tokens of a step that chose each expert of each router, with every token counted on one
device.
"""

from __future__ import annotations

from dataclasses import field

import torch

from shardwright.execute.device_state.device_parameters import Key
from shardwright.execute.interpreter.device_actions import Turn
from shardwright.execute.interpreter.stage_nodes import Node
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.model.router_balancing import selection_bias
from shardwright.program.layout.device_cells import token_box
from shardwright.program.stages.stage_segments import Segment

Routed = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By router: (.., experts) logits, and (.., topk) numbers of the experts that it chose, of the
device's tokens."""


def first_holders(
    segment: Segment, operator: Operator, *, length: int, base: int
) -> frozenset[int]:
    """The first of the devices that have the same tokens of an operator."""
    first: dict[object, int] = {}
    for device, cell in segment.cells.cells.get(operator.klass, {}).items():
        box = token_box(cell, samples=segment.cells.samples, length=length)
        first[box] = min(first.get(box, device), device)
    return frozenset(device + base for device in first.values())


@dataclass(slots=True, kw_only=True)
class ExpertLoads:
    """A device's counts of a step, of routers with a bias of the choice.

    Args:
        length: positions of the text.
        counts: by the bias, tokens that chose each expert, in float64, which adds them exactly.
        holders: by (lane, chunk, node, operator), whether the device counts its tokens.
    """

    device: int
    length: int
    counts: dict[Key, torch.Tensor] = field(default_factory=dict)
    holders: dict[tuple[int, int, int, str], bool] = field(default_factory=dict)

    def add(self, place: Turn, node: Node, routed: Routed, *, base: int) -> None:
        """Count the choices of a layer, where no other device counts the same tokens."""
        lane, chunk, *_ = place
        for operator in (o for o in node.block.operators if o.name in routed):
            bias, key = (
                selection_bias(node.block, operator),
                (lane, chunk, node.number, operator.name),
            )
            if bias is None:
                continue
            if key not in self.holders:
                self.holders[key] = self.device in first_holders(
                    node.segment, operator, length=self.length, base=base
                )
            if self.holders[key]:
                own = (node.segment.run, node.layer, operator.name, bias.name)
                counts, known = (
                    chosen_counts(routed[operator.name][1], experts=bias.size),
                    self.counts.get(own),
                )
                self.counts[own] = counts if known is None else known + counts


def chosen_counts(chosen: torch.Tensor, *, experts: int) -> torch.Tensor:
    """(experts,) in float64: how often each number is among those chosen. Not `bincount`, which
    waits for the accelerator.
    """
    numbers = chosen.flatten()
    counts = torch.zeros(experts, dtype=torch.float64, device=chosen.device)
    return counts.index_add_(0, numbers, torch.ones_like(numbers, dtype=torch.float64))
