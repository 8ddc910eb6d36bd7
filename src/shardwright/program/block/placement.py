"""What lowering a block asks of the way its operators are cut: by the axes of a grid, or by the
cells of one device of a general plan.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor import Dim, Extent, Parameter
from shardwright.program.block.sizes import Size

TOKEN_DIMS = (Dim.BATCH, Dim.SEQUENCE, Dim.CONTEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a tensor gets from the layout that one operator makes to the one that another reads, and
    its cotangent back.

    Args:
        axis: of the mesh, or the one that it resembles.
        group: devices, counted from the stage's first; empty = the axis names them.
        forward, backward: collectives; None = nothing moves.
        forward_volume, backward_volume: bytes as in `collectives.Collective`.
        between: the layouts, and the number of the step that it is on the way: of several readers'
            equal ones only one runs.
    """

    axis: str
    forward: Collective | None
    backward: Collective | None
    forward_volume: tuple[Size, ...]
    backward_volume: tuple[Size, ...]
    group: tuple[int, ...] = ()
    between: Hashable = None


class Placing(Protocol):
    """How the operators of a block are cut, as seen by one device."""

    @property
    def sequence_parallel(self) -> bool:
        """The stream is cut by position where the products are not."""
        ...

    @property
    def gather(self) -> bool:
        """Members that cut positions gather keys instead of passing them round."""
        ...

    @property
    def routed(self) -> bool:
        """Tokens are sent to their experts; else every member has them."""
        ...

    def tokens(self, klass: OperatorClass, length: int) -> Size:
        """Tokens that a device works on in operators of `klass`, of sequences of `length`
        positions.
        """
        ...

    def part(self, extent: Extent, operator: Operator) -> Size:
        """Elements of one of the operator's extents on a device."""
        ...

    def dispatched(self, operator: Operator, length: int) -> Size:
        """Routed copies of tokens on a device in all."""
        ...

    def served_tokens(self, length: int) -> Size:
        """Tokens that a device's experts serve, of sequences of `length` positions: its own and
        those of others.
        """
        ...

    def sent_copies(self, operator: Operator, length: int) -> Size:
        """The full buffer of an all_to_all that sends a device's routed copies to their experts:
        the larger of what it gives and gets.
        """
        ...

    def gathered_copies(self, operator: Operator, length: int) -> Size:
        """The routed copies of all devices that share experts with one."""
        ...

    def coset_tokens(self, length: int) -> Size:
        """Tokens that all devices which share experts with one route together."""
        ...

    def coset(self) -> tuple[int, ...]:
        """Those devices; empty = axis ``coset``."""
        ...

    def gathered_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> Size:
        """Tokens whose keys the devices of a core's group have between them, of stretches of these
        lengths.
        """
        ...

    def expert_groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Devices between which tokens travel to experts, and those that share experts; empty =
        axes ``ep`` and ``etp``.
        """
        ...

    def passed_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> tuple[Size, ...]:
        """Tokens whose keys a device passes on: (its own), as many on every hop; or of unequal
        parts all, in the order of the hops.
        """
        ...

    def members(self, operator: Operator, dim: Dim) -> tuple[int, ...]:
        """Devices that differ only in their part of `dim` of `operator`; empty = an axis names
        them.
        """
        ...

    def summed_along(self, operator: Operator, parameter: Parameter) -> tuple[str, ...]:
        """Axes beside dp and cp along which devices hold the same elements and compute different
        terms of their gradient; cells say it themselves (`program.stages.contribution`).
        """
        ...

    def runs(self, operator: Operator) -> bool:
        """The device runs `operator`."""
        ...

    def changes(
        self,
        source: Operator | None,
        target: Operator,
        *,
        length: int,
        element: int,
        memory_length: int = 0,
    ) -> tuple[Change, ...]:
        """What the tensor between two operators goes through.

        Args:
            source: None = the block's input.
            length: positions of the tensor's sequence.
            element: bytes of an element.
        """
        ...


def resolved(cut_dim: Dim, operator: Operator) -> Dim | None:
    """The dim that a cut means for `operator`: its own width, or the dim itself."""
    return operator.width() if cut_dim is Dim.WIDTH else cut_dim


def is_routed(operator: Operator) -> bool:
    """The operator works on tokens sent to experts."""
    return operator.klass is OperatorClass.EXPERTS and operator.experts is not None
