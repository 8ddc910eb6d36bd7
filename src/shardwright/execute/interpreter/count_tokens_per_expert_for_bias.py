"""Number of a step's tokens that chose each expert of each router, each token counted once."""

from __future__ import annotations

from dataclasses import field

import torch

from shardwright.execute.device_state.stored_parameter_parts import Key
from shardwright.execute.interpreter.iterate_device_passes_in_order import Turn
from shardwright.execute.interpreter.stage_layers import StageNode
from shardwright.execute.numerics.experts.load_balancing_loss import tokens_by_expert
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.find_routers_with_balancing_loss_or_biases import selection_bias
from shardwright.model.ir.operator import Operator
from shardwright.program.layout.device_parts_of_dims import token_box
from shardwright.program.stages.stage_segments import Segment

Routed = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By router: (.., experts) logits and (.., topk) numbers of the chosen experts, for the device's
tokens."""


def first_holders(
    segment: Segment, operator: Operator, *, length: int, first_device: int
) -> frozenset[int]:
    """Devices that count an operator's tokens: the lowest of those that hold the same tokens."""
    first: dict[object, int] = {}
    for device, cell in segment.cells.cells.get(operator.klass, {}).items():
        box = token_box(cell, samples=segment.cells.samples, length=length)
        first[box] = min(first.get(box, device), device)
    return frozenset(device + first_device for device in first.values())


@dataclass(slots=True, kw_only=True)
class ExpertLoads:
    """A device's counts of tokens per chosen expert in a step, for routers with a choice bias.

    Args:
        length: number of positions of the text.
        counts: for each bias, the tokens that chose each expert, in float64, which adds them
            exactly.
        holders: True by (lane, chunk, node, operator) if the device counts the operator's tokens.
    """

    device: int
    length: int
    counts: dict[Key, torch.Tensor] = field(default_factory=dict)
    holders: dict[tuple[int, int, int, str], bool] = field(default_factory=dict)

    def add(self, place: Turn, node: StageNode, routed: Routed, *, first_device: int) -> None:
        """Count tokens by expert in a layer's biased routers, if no lower device holds them."""
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
                    node.segment, operator, length=self.length, first_device=first_device
                )
            if self.holders[key]:
                bias_key = (node.segment.run, node.layer, operator.name, bias.name)
                counts, earlier_counts = (
                    tokens_by_expert(routed[operator.name][1], experts=bias.size),
                    self.counts.get(bias_key),
                )
                self.counts[bias_key] = (
                    counts if earlier_counts is None else earlier_counts + counts
                )
