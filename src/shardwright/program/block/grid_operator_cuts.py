"""Mesh axes of a grid of parallel degrees, and the dims of each operator class that they cut.

Degrees are not part of the structure (an axis of degree one costs nothing).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.program.block.grid_or_plan_cut_protocol import TOKEN_DIMS, LayoutChange, resolved
from shardwright.program.block.layout_changes import axis_change
from shardwright.program.block.symbolic_sizes import Factor, Size
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_parts_of_dims import reference_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisCut:
    """A mesh axis and the tensor dim that the axis cuts."""

    axis: str
    dim: Dim


@lru_cache(maxsize=256)
def _cuts(sequence_parallel: bool, routed: bool, klass: OperatorClass) -> tuple[AxisCut, ...]:
    """Mesh axes and the dims that they cut in an operator class, outermost first (cached)."""
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
def _tokens_of_class(
    sequence_parallel: bool, routed: bool, klass: OperatorClass, length: int
) -> Size:
    """Tokens of a microbatch of `length` positions a sample on one device, for a class (cached)."""
    axes = tuple(c.axis for c in _cuts(sequence_parallel, routed, klass) if c.dim in TOKEN_DIMS)
    return Size(scale=("mbs",), factors=(Factor(runs=length, axes=axes),))


@lru_cache(maxsize=8192)
def _extent_part(
    sequence_parallel: bool, routed: bool, extent: Same[Extent], of: Same[Operator], once: bool
) -> Size:
    """Elements of an extent on one device, symbolic; `once` divides a run among copies (cached)."""
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
    """The cut of operators by a grid's axes, a `Placing` with symbolic sizes.

    Args:
        sequence_parallel: tp cuts the residual stream by position (else members hold copies).
        gather: ring members gather keys instead of passing them round.
        routed: experts have their own mesh (etp, ep, edp) and tokens are dispatched; else tp cuts
            experts like the MLP.
        shared_keys: tp leaves a device one key head, which all members of ``ulysses`` read for
            their own query heads.
    """

    sequence_parallel: bool = False
    gather: bool = False
    routed: bool = True
    shared_keys: bool = False

    def cuts(self, klass: OperatorClass) -> tuple[AxisCut, ...]:
        """Mesh axes and the dims that they cut in operators of `klass`, outermost first.

        The batch axis is already in the microbatch's size.
        """
        return _cuts(self.sequence_parallel, self.routed, klass)

    def tokens(self, klass: OperatorClass, length: int) -> Size:
        """Tokens of a microbatch of `length` positions a sample on one device, for `klass`.

        See `Placing.tokens`.
        """
        return _tokens_of_class(self.sequence_parallel, self.routed, klass, length)

    def part(self, extent: Extent, operator: Operator, *, once: bool = False) -> Size:
        """Elements of an extent on one device, symbolic; `once` divides a run among its copies.

        See `Factor` for `once`.
        """
        return _extent_part(self.sequence_parallel, self.routed, Same(extent), Same(operator), once)

    def dispatched(self, operator: Operator, length: int) -> Size:
        """Routed copies that one device's experts work on: topk x tokens, x ``etp`` if routed.

        topk of each token in its share of the expert-parallel group.

        Its share of the expert-parallel group.
        """
        assert operator.experts is not None
        if not self.routed:
            return self.tokens(operator.klass, length).scaled(operator.experts.topk)
        stream = self.tokens(OperatorClass.STREAM, length)
        return Size(times=operator.experts.topk, scale=("mbs", "etp"), factors=stream.factors)

    def served_tokens(self, length: int) -> Size:
        """Tokens for one device's experts: of all ``ep`` x ``etp`` members if routed, else its own.

        Those of its expert-parallel group, or its own where the experts are cut like the MLP.
        """
        return (
            self.coset_tokens(length) if self.routed else self.tokens(OperatorClass.EXPERTS, length)
        )

    def sent_copies(self, operator: Operator, length: int) -> Size:
        """Routed copies that one device sends: topk of each of its tokens.

        All members send as many.
        """
        assert operator.experts is not None
        return self.tokens(OperatorClass.ROUTER, length).scaled(operator.experts.topk)

    def gathered_copies(self, operator: Operator, length: int) -> Size:
        """Routed copies that the ``etp`` members send together: `sent_copies` times ``etp``."""
        routed = self.sent_copies(operator, length)
        return Size(times=routed.times, scale=(*routed.scale, "etp"), factors=routed.factors)

    def coset_tokens(self, length: int) -> Size:
        """Tokens that all members along ``ep`` and ``etp`` route together."""
        local = self.tokens(OperatorClass.ROUTER, length)
        return Size(times=local.times, scale=(*local.scale, "ep", "etp"), factors=local.factors)

    def coset(self) -> tuple[int, ...]:
        """Always empty: in a grid the axis ``coset`` names the devices that share experts."""
        return ()

    def gathered_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> Size:
        """Tokens of all context-parallel members along ``ring`` together, over all stretches."""
        local = self.tokens(operator.klass, sum(lengths))
        return Size(times=local.times, scale=(*local.scale, "ring"), factors=local.factors)

    def passed_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> tuple[Size, ...]:
        """Tokens whose keys a device passes on a ring hop: one entry, as all hops are equal."""
        return (self.tokens(operator.klass, sum(lengths)),)

    def expert_groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Always two empty groups: in a grid the axes ``ep`` and ``etp`` name the groups."""
        return (), ()

    def members(self, operator: Operator, dim: Dim) -> tuple[int, ...]:
        """Always empty: in a grid a mesh axis names the devices of the group."""
        return ()

    def summed_along(self, operator: Operator, parameter: Parameter) -> tuple[str, ...]:
        """Axes besides dp and cp along which devices hold the same parameter and sum its gradient.

        tp for a norm's gain where tp cuts tokens, and the axis that cuts the product for a bias.
        See `Placing.summed_along`.

        See `Placing.summed_along`.
        """
        parameter_dims = {e.dim for e in parameter.extents}
        operator_dims = {e.dim for e in (*operator.reads, *operator.writes)}
        axes = []
        for cut in self.cuts(operator.klass):
            dim = resolved(cut.dim, operator)
            by_token = cut.dim in TOKEN_DIMS
            if cut.axis == "ring" or (cut.axis == "ulysses" and by_token):
                continue
            if (
                by_token
                or (dim in operator_dims and dim not in parameter_dims)
                or cut.axis == "ulysses"
            ):
                axes.append(cut.axis)
        return tuple(axes)

    def runs(self, operator: Operator) -> bool:
        """Always True: every device of a grid's stage runs every operator."""
        return True

    def changes(
        self,
        source: Operator | None,
        target: Operator,
        *,
        length: int,
        element: int,
        memory_length: int = 0,
    ) -> tuple[LayoutChange, ...]:
        """Collectives, both ways, of a tensor between operators (`source` None: the block's input).

        And one of key heads that all members of ``ulysses`` read.

        Keys with several readers, but not all, move once here: the plan knows how each reader gets
        them, and no way moves fewer bytes.
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

        def volume_of(chosen: list[Extent]) -> Callable[[Operator], tuple[Size, ...]]:
            """Function from an operator to its device's bytes of each of the chosen extents."""
            once = [e in keys and not self.shared_keys for e in chosen]
            return lambda holder: tuple(
                self.tokens(holder.klass, length) * self.part(e, holder, once=o).scaled(element)
                for e, o in zip(chosen, once, strict=True)
            )

        changes = []
        for cut in (c for c in self.cuts(target.klass) if c.axis != "ring"):
            change = partial(
                axis_change,
                cut.axis,
                source=source,
                source_cut=source_cuts[cut.axis],
                target=target,
            )
            read_by_all = shared if cut.axis == "ulysses" and cut.dim is Dim.HEADS else []
            changes.append(
                change(cut=cut.dim, volume=volume_of([e for e in extents if e not in read_by_all]))
            )
            if read_by_all:
                changes.append(change(cut=cut.dim, volume=volume_of(read_by_all), shared=True))
        return tuple(change for change in changes if change is not None)
