"""Groups of devices that sum a parameter's gradient, from the terms that each computes.

Never from the name of an axis.

A cell is one index of (use, samples, positions, other split dims): one term of the gradient's sum.
Devices that computed the same cells hold duplicates, which are not added; devices that computed
disjoint cells hold parts of the sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import product

from shardwright.errors import StrategyError
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.groups_of_one_device_per_class import (
    Group,
    representatives,
    transversals,
)
from shardwright.program.layout.tensor_layout import Box, Ticks, ticks, volume

Work = tuple[tuple[Hashable, Box], ...]
"""(use, cells) of each use: boxes of one use have the same dims."""
_Cell = tuple[Hashable, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientShare:
    """Elements of a parameter that one device holds, and the gradient terms that it computes.

    A device may have several shares, such as two uses of tied weights.

    Attributes:
        need: indices of the parameter that the device holds and uses.
        work: cells whose terms of the gradient it computes for all of those indices.
    """

    device: int
    need: Box
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class SumGroup:
    """Elements of a parameter whose gradient the same devices sum: one flat bucket.

    Attributes:
        elements: number of elements of all boxes.
        groups: disjoint groups, each of which sums all elements over one device of every distinct
            contribution; groups of one device have nothing to sum.
        copies: where contributions have unequal numbers of duplicates there is one group, and its
            members broadcast to their duplicates: (member, duplicates ..).
        boxes: the elements, as boxes of the parameter.
    """

    elements: int
    groups: tuple[Group, ...]
    copies: tuple[Group, ...] = ()
    boxes: tuple[Box, ...] = ()


def sum_groups(
    shares: tuple[GradientShare, ...],
    *,
    total: Work | None = None,
    islands: Units | None = None,
    path: str = "",
) -> tuple[SumGroup, ...]:
    """Groups of devices that sum a parameter's gradient, by the elements that they sum.

    In the order of the parameter's elements.

    The parameter is cut at all ends of all needs. Of each atom, the contributions c(device) = union
    of the work of its shares that need the atom; k distinct ones with r duplicates each give r
    groups of k.

    Args:
        total: all cells of every atom. None: the cells that the shares cover.
        islands: islands of the devices; None: no islands.
        path: for errors.

    Raises:
        StrategyError: grad.overlap if two contributions are neither equal nor disjoint;
            grad.coverage if an atom's cells are not `total`.

    Source: zoo section 4, rules 1-4 and 6.
    """
    cells = _Cells(shares, total)
    computed = [(share.device, cells.cells_of_work(share.work)) for share in shares]
    boxes_of_groups: dict[tuple[tuple[Group, ...], tuple[Group, ...]], list[Box]] = {}
    for boxes, places in _atoms_and_shares(shares):
        classes = _classes_by_contribution(
            [computed[place] for place in places], cells.total, path=path
        )
        boxes_of_groups.setdefault(_groups_and_copies(classes, islands=islands), []).extend(boxes)
    return tuple(
        SumGroup(elements=sum(map(volume, boxes)), groups=groups, copies=copies, boxes=tuple(boxes))
        for (groups, copies), boxes in boxes_of_groups.items()
    )


def _atoms_and_shares(shares: tuple[GradientShare, ...]) -> Iterable[tuple[list[Box], list[int]]]:
    """Yield (boxes, indices of the shares that need them) of a parameter, equal needs together."""
    by_need: dict[Box, list[int]] = {}
    for place, share in enumerate(shares):
        by_need.setdefault(share.need, []).append(place)
    for boxes, covering in parameter_atoms(by_need):
        yield boxes, [place for need in covering for place in by_need[need]]


def parameter_atoms(needs: Iterable[Box]) -> Iterable[tuple[list[Box], tuple[Box, ...]]]:
    """(boxes, distinct needs that contain them) of a parameter cut at all ends of its needs.

    In the order of its elements; boxes of the same needs are together.
    """
    all_needs = tuple(needs)
    cuts = [ticks(lists) for lists in zip(*all_needs, strict=True)]
    needs_of_atom: dict[tuple[int, ...], list[Box]] = {}
    for need in all_needs:
        for atom in product(
            *(cut.inside[index_list] for cut, index_list in zip(cuts, need, strict=True))
        ):
            needs_of_atom.setdefault(atom, []).append(need)
    boxes_of_needs: dict[tuple[Box, ...], list[Box]] = {}
    for atom in sorted(needs_of_atom):
        box = tuple(cut.indices[tick] for cut, tick in zip(cuts, atom, strict=True))
        boxes_of_needs.setdefault(tuple(needs_of_atom[atom]), []).append(box)
    for covering, boxes in boxes_of_needs.items():
        yield boxes, covering


class _Cells:
    """Converter of work to sets of cells, so that equal work gives equal sets."""

    def __init__(self, shares: tuple[GradientShare, ...], total: Work | None) -> None:
        boxes: dict[Hashable, list[Box]] = {}
        for use, box in (
            *(entry for work in {share.work for share in shares} for entry in work),
            *(total or ()),
        ):
            boxes.setdefault(use, []).append(box)
        self._cuts: dict[Hashable, list[Ticks]] = {
            use: [ticks(lists) for lists in zip(*boxes_of_use, strict=True)]
            for use, boxes_of_use in boxes.items()
        }
        self._cells_of_work: dict[Work, frozenset[_Cell]] = {}
        self.total = None if total is None else self.cells_of_work(total)

    def cells_of_work(self, work: Work) -> frozenset[_Cell]:
        """The cells (use, tick of each dim) that some work covers (cached)."""
        if work not in self._cells_of_work:
            self._cells_of_work[work] = frozenset(
                (use, cell)
                for use, box in work
                for cell in product(
                    *(
                        cut.inside[index_list]
                        for cut, index_list in zip(self._cuts[use], box, strict=True)
                    )
                )
            )
        return self._cells_of_work[work]


def _classes_by_contribution(
    computed: Iterable[tuple[int, frozenset[_Cell]]], total: frozenset[_Cell] | None, *, path: str
) -> tuple[Group, ...]:
    """Group devices by equal sets of cells; raise if sets overlap partly or do not cover `total`.

    Args:
        computed: cells of each device's shares of one atom.
        total: all cells; None: the cells that the shares cover.
    """
    contribution: dict[int, frozenset[_Cell]] = {}
    for device, cells_of_class in computed:
        known_cells = contribution.get(device)
        contribution[device] = (
            cells_of_class
            if known_cells is None or known_cells == cells_of_class
            else known_cells | cells_of_class
        )
    classes: dict[frozenset[_Cell], list[int]] = {}
    for device in sorted(contribution):
        classes.setdefault(contribution[device], []).append(device)
    owner: dict[_Cell, int] = {}
    for cells_of_class, devices in classes.items():
        for cell in cells_of_class:
            first_owner = owner.setdefault(cell, devices[0])
            if first_owner != devices[0]:
                raise StrategyError(
                    f"devices {first_owner} and {devices[0]} compute gradients of partly the same"
                    " tokens",
                    hint="holders of a parameter work on the same tokens or on different ones",
                    rule="grad.overlap",
                    path=path,
                )
    if total is not None and owner.keys() != total:
        lacking = len(total - owner.keys())
        raise StrategyError(
            "gradients of some tokens are computed nowhere"
            if lacking
            else "gradients of tokens outside the step",
            hint="holders of every part of a parameter must together work on the whole batch",
            rule="grad.coverage",
            path=path,
        )
    return tuple(map(tuple, classes.values()))


def _groups_and_copies(
    classes: tuple[Group, ...], *, islands: Units | None
) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """(groups that sum, groups whose first sends the sum to duplicates) of an atom's classes."""

    def place(device: int) -> int:
        """Island number of a device; 0 without islands."""
        return islands.at(device) if islands is not None else 0

    if len({len(devices) for devices in classes}) == 1:
        return transversals(classes, island=place), ()
    roots = representatives(classes, island=place)
    copies = tuple(
        (root, *(device for device in devices if device != root))
        for root, devices in zip(roots, classes, strict=True)
        if len(devices) > 1
    )
    return (tuple(sorted(roots)),), copies
