"""Protocol through which lowering a block sees how operators are cut over devices.

By the axes of a grid, or by the cells of one device of a general plan.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.program.block.symbolic_sizes import Size

TOKEN_DIMS = (Dim.BATCH, Dim.SEQUENCE, Dim.CONTEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """Collectives between the layout of a tensor's maker and the layout of its reader.

    They bring the tensor to its reader, and its cotangent back.

    Args:
        axis: mesh axis, or the one that the change resembles.
        group: devices, counted from the stage's first; empty = the axis names them.
        forward, backward: collectives; None = nothing moves.
        forward_volume, backward_volume: bytes as in
            `collectives.algorithm_costs.algorithm_protocol.Collective`.
        between: the two layouts, and the number of the step between them: of equal changes for
            several readers only one runs.
    """

    axis: str
    forward: Collective | None
    backward: Collective | None
    forward_volume: tuple[Size, ...]
    backward_volume: tuple[Size, ...]
    group: tuple[int, ...] = ()
    between: Hashable = None


class Placing(Protocol):
    """The cut of a block's operators over devices, as seen by one device."""

    @property
    def sequence_parallel(self) -> bool:
        """True if the residual stream is cut by position where the GEMMs are not."""
        ...

    @property
    def gather(self) -> bool:
        """True if members that cut positions gather keys instead of passing them round a ring."""
        ...

    @property
    def routed(self) -> bool:
        """True if tokens must move to their experts (any dispatcher); else members hold them."""
        ...

    def tokens(self, klass: OperatorClass, length: int) -> Size:
        """Tokens of a microbatch that a device works on in operators of `klass`.

        Of sequences of `length` positions.
        """
        ...

    def part(self, extent: Extent, operator: Operator) -> Size:
        """Elements of one of the operator's extents that a device holds."""
        ...

    def dispatched(self, operator: Operator, length: int) -> Size:
        """Routed token copies that one device's experts work on, before imbalance."""
        ...

    def served_tokens(self, length: int) -> Size:
        """Tokens that a device's experts serve: its own and those that other devices send.

        Of sequences of `length` positions.
        """
        ...

    def sent_copies(self, operator: Operator, length: int) -> Size:
        """Routed copies in the all-to-all that sends one device's tokens to their experts.

        The full buffer: the larger of what it sends and receives.
        """
        ...

    def gathered_copies(self, operator: Operator, length: int) -> Size:
        """Routed copies that all devices with parts of the same experts (``etp``) work on."""
        ...

    def coset_tokens(self, length: int) -> Size:
        """Tokens that all devices which jointly hold every expert (``ep`` x ``etp``) route."""
        ...

    def coset(self) -> tuple[int, ...]:
        """Devices that jointly hold every expert for the same tokens; empty = axis ``coset``."""
        ...

    def gathered_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> Size:
        """Tokens whose keys an attention core's group holds together, over all text stretches.

        Of stretches of these lengths.
        """
        ...

    def expert_groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(devices with other experts, with other parts of the same experts); empty = ep, etp."""
        ...

    def passed_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> tuple[Size, ...]:
        """Tokens whose keys a device passes on in each ring hop; one entry if all are equal."""
        ...

    def members(self, operator: Operator, dim: Dim) -> tuple[int, ...]:
        """Devices, this one included, that differ only in their part of `dim`; empty = an axis."""
        ...

    def summed_along(self, operator: Operator, parameter: Parameter) -> tuple[str, ...]:
        """Axes besides dp and cp along which devices sum the gradient of the same elements.

        They hold the same elements and compute different terms of their gradient.

        Cells say this themselves (`sum_groups`).
        """
        ...

    def runs(self, operator: Operator) -> bool:
        """True if the device runs `operator`."""
        ...

    def changes(
        self,
        source: Operator | None,
        target: Operator,
        *,
        length: int,
        element: int,
        memory_length: int = 0,
    ) -> tuple[LayoutChange, ...]:
        """Collectives, forward and backward, of the tensor between two operators; () if none.

        Args:
            source: None = the block's input.
            length: positions of the tensor's sequence.
            element: bytes of an element.
        """
        ...


def resolved(cut_dim: Dim, operator: Operator) -> Dim | None:
    """The dim that a cut divides: for WIDTH the operator's width dim or None, else `cut_dim`."""
    return operator.width() if cut_dim is Dim.WIDTH else cut_dim


def is_routed(operator: Operator) -> bool:
    """True if the operator works on tokens sent to experts."""
    return operator.klass is OperatorClass.EXPERTS and operator.experts is not None
