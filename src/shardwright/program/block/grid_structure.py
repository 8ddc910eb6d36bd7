"""How a grid cuts each operator class: axes and the dims they cut. Degrees are not part of it (an
axis of degree one costs nothing).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor import Dim, Extent, Parameter
from shardwright.program.block.axis_changes import axis_change
from shardwright.program.block.placement import TOKEN_DIMS, Change, resolved
from shardwright.program.block.sizes import Factor, Size
from shardwright.program.layout.cells import reference_runs
from shardwright.program.same import Same


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisCut:
    """`axis` of the mesh cuts `dim`."""

    axis: str
    dim: Dim


@lru_cache(maxsize=256)
def _cuts(sequence_parallel: bool, routed: bool, klass: OperatorClass) -> tuple[AxisCut, ...]:
    ring = AxisCut(axis="ring", dim=Dim.SEQUENCE)
    if klass in (OperatorClass.STREAM, OperatorClass.ROUTER):
        stream = Dim.SEQUENCE if sequence_parallel else Dim.REPLICATE
        return (ring, AxisCut(axis="ulysses", dim=Dim.SEQUENCE), AxisCut(axis="tp", dim=stream))
    if klass is OperatorClass.CORE:
        return (ring, AxisCut(axis="ulysses", dim=Dim.HEADS), AxisCut(axis="tp", dim=Dim.WIDTH))
    if klass is OperatorClass.EXPERTS and routed:
        return (AxisCut(axis="ep", dim=Dim.EXPERTS), AxisCut(axis="etp", dim=Dim.FFN))
    return (ring, AxisCut(axis="ulysses", dim=Dim.SEQUENCE), AxisCut(axis="tp", dim=Dim.WIDTH))


@lru_cache(maxsize=1024)
def _tokens(sequence_parallel: bool, routed: bool, klass: OperatorClass, length: int) -> Size:
    axes = tuple(c.axis for c in _cuts(sequence_parallel, routed, klass) if c.dim in TOKEN_DIMS)
    return Size(scale=("mbs",), factors=(Factor(runs=length, axes=axes),))


@lru_cache(maxsize=8192)
def _part(
    sequence_parallel: bool, routed: bool, extent: Same[Extent], of: Same[Operator], once: bool
) -> Size:
    operator, runs = of.value, extent.value
    cuts = _cuts(sequence_parallel, routed, operator.klass)
    axes = (
        ()
        if runs.dim is Dim.SEQUENCE
        else tuple(c.axis for c in cuts if resolved(c.dim, operator) is runs.dim)
    )
    return Size(factors=(Factor(runs=runs.runs, quantum=runs.quantum, axes=axes, once=once),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What lowering a block under a grid depends on (a `Placing` with symbolic sizes).

    Args:
        sequence_parallel: stream is cut on s by tp (else copied).
        gather: ring members gather keys instead of passing them round.
        routed: experts have their own mesh (etp, ep, edp), tokens are dispatched; else they are cut
            like the MLP by tp.
        shared_keys: tp leaves a device one key head, which all members of ``ulysses`` read for
            their own query heads.
    """

    sequence_parallel: bool = False
    gather: bool = False
    routed: bool = True
    shared_keys: bool = False

    def cuts(self, klass: OperatorClass) -> tuple[AxisCut, ...]:
        """Axes that cut operators of `klass`, outermost first (the batch axis is already in the
        microbatch's size).
        """
        return _cuts(self.sequence_parallel, self.routed, klass)

    def tokens(self, klass: OperatorClass, length: int) -> Size:
        """Tokens of one device; see `Placing.tokens`."""
        return _tokens(self.sequence_parallel, self.routed, klass, length)

    def part(self, extent: Extent, operator: Operator, *, once: bool = False) -> Size:
        """Elements of one extent on one device; see `Factor` for `once`."""
        return _part(self.sequence_parallel, self.routed, Same(extent), Same(operator), once)

    def dispatched(self, operator: Operator, length: int) -> Size:
        """Routed copies on one device: topk of each token of its expert coset's share."""
        assert operator.experts is not None
        if not self.routed:
            return self.tokens(operator.klass, length).scaled(operator.experts.topk)
        stream = self.tokens(OperatorClass.STREAM, length)
        return Size(times=operator.experts.topk, scale=("mbs", "etp"), factors=stream.factors)

    def served_tokens(self, length: int) -> Size:
        """Tokens of its coset; its own where the experts are cut like the MLP."""
        return (
            self.coset_tokens(length) if self.routed else self.tokens(OperatorClass.EXPERTS, length)
        )

    def sent_copies(self, operator: Operator, length: int) -> Size:
        """topk of each token: all members have as many."""
        assert operator.experts is not None
        return self.tokens(OperatorClass.ROUTER, length).scaled(operator.experts.topk)

    def gathered_copies(self, operator: Operator, length: int) -> Size:
        """The routed copies of all members along ``etp``."""
        routed = self.sent_copies(operator, length)
        return Size(times=routed.times, scale=(*routed.scale, "etp"), factors=routed.factors)

    def coset_tokens(self, length: int) -> Size:
        """Of all members along ``ep`` and ``etp``."""
        own = self.tokens(OperatorClass.ROUTER, length)
        return Size(times=own.times, scale=(*own.scale, "ep", "etp"), factors=own.factors)

    def coset(self) -> tuple[int, ...]:
        """The axis names them."""
        return ()

    def gathered_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> Size:
        """Of all members along ``ring``."""
        own = self.tokens(operator.klass, sum(lengths))
        return Size(times=own.times, scale=(*own.scale, "ring"), factors=own.factors)

    def passed_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> tuple[Size, ...]:
        """All members have as many."""
        return (self.tokens(operator.klass, sum(lengths)),)

    def expert_groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The axes name them."""
        return (), ()

    def members(self, operator: Operator, dim: Dim) -> tuple[int, ...]:
        """The axes name them."""
        return ()

    def summed_along(self, operator: Operator, parameter: Parameter) -> tuple[str, ...]:
        """See `Placing.summed_along`: a norm's gain along tp where it works on other tokens, a bias
        along the axis that cuts its product.
        """
        held = {e.dim for e in parameter.extents}
        present = {e.dim for e in (*operator.reads, *operator.writes)}
        result = []
        for cut in self.cuts(operator.klass):
            dim = resolved(cut.dim, operator)
            by_token = cut.dim in TOKEN_DIMS
            if cut.axis == "ring" or (cut.axis == "ulysses" and by_token):
                continue
            if by_token or (dim in present and dim not in held) or cut.axis == "ulysses":
                result.append(cut.axis)
        return tuple(result)

    def runs(self, operator: Operator) -> bool:
        """Every device of a grid's stage runs everything."""
        return True

    def changes(
        self,
        source: Operator | None,
        target: Operator,
        *,
        length: int,
        element: int,
        memory_length: int = 0,
    ) -> tuple[Change, ...]:
        """One change an axis at most, and one of key heads that all members of ``ulysses`` read.

        Keys with several readers, but not all, move once here: how each reader gets them the plan
        knows, and no way moves less.
        """
        extents = source.writes if source is not None else target.reads
        source_cuts = {
            c.axis: c.dim
            for c in self.cuts(source.klass if source is not None else OperatorClass.STREAM)
        }
        keys = [
            e
            for e in extents
            if target.attention is not None and e.runs < reference_runs(target, e.dim)
        ]
        shared = keys if self.shared_keys else []

        def volume_of(some: list[Extent]) -> Callable[[Operator], tuple[Size, ...]]:
            once = [e in keys and not self.shared_keys for e in some]
            return lambda holder: tuple(
                self.tokens(holder.klass, length) * self.part(e, holder, once=o).scaled(element)
                for e, o in zip(some, once, strict=True)
            )

        found = []
        for cut in (c for c in self.cuts(target.klass) if c.axis != "ring"):
            change = partial(
                axis_change,
                cut.axis,
                source=source,
                source_cut=source_cuts[cut.axis],
                target=target,
            )
            whole = shared if cut.axis == "ulysses" and cut.dim is Dim.HEADS else []
            found.append(
                change(cut=cut.dim, volume=volume_of([e for e in extents if e not in whole]))
            )
            if whole:
                found.append(change(cut=cut.dim, volume=volume_of(whole), shared=True))
        return tuple(change for change in found if change is not None)
