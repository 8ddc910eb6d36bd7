"""How a grid cuts each operator class: axes and the dims they cut. Degrees are not part of it (an axis of degree one costs nothing)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.model.operator import OperatorClass
from shardwright.model.tensor import Dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`axis` of the mesh cuts `dim`."""

    axis: str
    dim: Dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What lowering a block depends on.

    Args:
        sequence_parallel: stream is cut on s by tp (else copied).
        gather: ring members gather keys instead of passing them round.
        routed: experts have their own mesh (etp, ep, edp), tokens are dispatched; else they are cut like the MLP by tp.
    """

    sequence_parallel: bool = False
    gather: bool = False
    routed: bool = True

    def cuts(self, klass: OperatorClass) -> tuple[Cut, ...]:
        """Axes that cut operators of `klass`, outermost first (the batch axis is already in the microbatch's size)."""
        ring = Cut(axis="ring", dim=Dim.SEQUENCE)
        if klass in (OperatorClass.STREAM, OperatorClass.ROUTER):
            stream = Dim.SEQUENCE if self.sequence_parallel else Dim.REPLICATE
            return (ring, Cut(axis="ulysses", dim=Dim.SEQUENCE), Cut(axis="tp", dim=stream))
        if klass is OperatorClass.CORE:
            return (ring, Cut(axis="ulysses", dim=Dim.HEADS), Cut(axis="tp", dim=Dim.WIDTH))
        if klass is OperatorClass.EXPERTS and self.routed:
            return (Cut(axis="ep", dim=Dim.EXPERTS), Cut(axis="etp", dim=Dim.FFN))
        return (ring, Cut(axis="ulysses", dim=Dim.SEQUENCE), Cut(axis="tp", dim=Dim.WIDTH))
