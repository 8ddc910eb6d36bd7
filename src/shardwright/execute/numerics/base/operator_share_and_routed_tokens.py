"""One device's share of an operator: its rows, parameters, groups and routing."""

from __future__ import annotations

from dataclasses import field

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator
from shardwright.program.layout.tensor_layout import Box, Indices, Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTokens:
    """A device's routed tokens: those that it holds, and those that its experts process.

    Args:
        held_tokens: samples and positions of the tokens that the device holds with their
            probabilities; () = none. Devices may hold the same tokens.
        expert_tokens: samples and positions of the tokens that its experts process; () = none.
        experts: the device's range of experts.
        copy: another device has the same experts, the same part of their width and the same tokens,
            and returns the outputs for both.
    """

    held_tokens: Box
    expert_tokens: Box
    experts: Interval
    copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorShare:
    """The samples, positions, parameters and process groups of one operator on one device.

    Args:
        operator: the operator that runs.
        samples, positions: the device's share of the microbatch and of the sequence (rows of its
            tensors, in order).
        length: positions of the whole sequence.
        memory_positions, memory_length: the same for the memory sequence (cross-attention).
        reads, writes: elements of each extent that the device has.
        parameters: by name, indices of each dim (in the order of its extents).
        heads, kv_heads: query heads, and key heads that they read.
        experts: local experts. vocabulary: rows of the table or logits.
        groups: devices for communication inside the operator, this one among them: ``vocab`` (other
            parts of the logits), ``hidden`` (other parts of a norm's width, or of its heads where
            its gain spans them), ``ring`` or ``gather`` (other positions of the same heads, whose
            keys are passed round or gathered); absent where nothing is split.
        ring_positions: for every device of the ring or gather, the positions of its keys (of its
            memory, in cross-attention).
        key_positions: positions of the device's own keys where they differ from its queries' (with
            earlier slices); empty = those of the queries, or of the memory in cross-attention.
        routing: routed tokens of every device that exchanges tokens with this one, itself included;
            empty = nothing is split.
        device: number of this device.
    """

    operator: Operator
    device: int
    samples: Indices
    positions: Indices
    length: int
    reads: tuple[Interval, ...]
    writes: tuple[Interval, ...]
    parameters: dict[str, Box]
    settings: Settings
    memory_positions: Indices = ()
    memory_length: int = 0
    heads: Interval = (0, 0)
    kv_heads: Interval = (0, 0)
    experts: Interval = (0, 0)
    groups: dict[str, tuple[int, ...]]
    ring_positions: dict[int, Indices] = field(default_factory=dict)
    key_positions: Indices = ()
    routing: dict[int, RoutedTokens] = field(default_factory=dict)
