"""Split trees of small stages: all of a given depth, cut dims and weights, up to symmetry.

Equal devices may be exchanged. A labelled tree names its leaves by their class of devices;
`split_on` places it on devices. One tree applies to a whole stage: for operators of a class that
lack the dim of a cut, the cut is a copy (heads are cut in attention and its core, hidden rows and
columns outside the core).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.stage_splits_and_policies import Placement, Selector
from shardwright.strategy.verify.stage_placement_split_and_keep_rules import has_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class CutNode:
    """A cut of `dim` into parts with these weights; a child is another cut, or a device label."""

    dim: Dim
    weights: tuple[int, ...]
    children: tuple[CutNode | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSpace:
    """Limits of the split trees of a space: dims, weights and depth of cuts.

    Args:
        dims: dims that a cut may have.
        weights: weights of the first of two parts; the second part has weight 1.
        depth: most nested cuts.
    """

    dims: tuple[Dim, ...] = (Dim.BATCH, Dim.HEADS, Dim.HIDDEN)
    weights: tuple[int, ...] = (1, 2, 3)
    depth: int = 2


def labelled_trees(
    counts: tuple[int, ...], space: TreeSpace, *, depth: int | None = None
) -> Iterator[CutNode | int]:
    """Yield every split tree with `counts[label]` leaves of each label.

    Two parts: any weights of the space, any two trees (both orders of unequal trees: the first
    takes the larger share, or the remainder of rounding). Three parts or more are equal: one tree
    for all, or single devices in the order of their labels.

    Args:
        depth: number of cuts that remain; None = the depth of the space.
    """
    cuts_left = space.depth if depth is None else depth
    total = sum(counts)
    if total == 1:
        yield counts.index(1)
    if total < 2 or not cuts_left:
        return
    for dim in space.dims:
        for first in product(*(range(n + 1) for n in counts)):
            second = tuple(n - k for n, k in zip(counts, first, strict=True))
            if not 0 < sum(first) < total:
                continue
            for first_tree, second_tree in product(
                labelled_trees(first, space, depth=cuts_left - 1),
                labelled_trees(second, space, depth=cuts_left - 1),
            ):
                for weight in space.weights:
                    yield CutNode(dim=dim, weights=(weight, 1), children=(first_tree, second_tree))
        for parts in range(3, total + 1):
            if all(n % parts == 0 for n in counts):
                for child in labelled_trees(
                    tuple(n // parts for n in counts), space, depth=cuts_left - 1
                ):
                    yield CutNode(dim=dim, weights=(1,) * parts, children=(child,) * parts)
            elif parts == total:
                yield CutNode(
                    dim=dim,
                    weights=(1,) * parts,
                    children=tuple(label for label, n in enumerate(counts) for _ in range(n)),
                )


def split_on(tree: CutNode | int, devices: tuple[tuple[int, ...], ...]) -> Split | None:
    """The labelled tree as a split, with offsets from the lowest device; None for one device."""
    device_iterators = [iter(sorted(label_devices)) for label_devices in devices]
    return _split(tree, device_iterators)[0]


def _split(tree: CutNode | int, device_iterators: list[Iterator[int]]) -> tuple[Split | None, int]:
    """Take a device of the label for each leaf; return the split (None = leaf), lowest device."""
    if isinstance(tree, int):
        return None, next(device_iterators[tree])
    children = [_split(child, device_iterators) for child in tree.children]
    base = min(device for _, device in children)
    offsets = tuple(device - base for _, device in children)
    strides = {b - a for a, b in pairwise(offsets)}
    is_uniform = len(set(tree.weights)) == 1 and all(
        child == tree.children[0] for child in tree.children
    )
    if (
        is_uniform
        and len(strides) == 1
        and offsets[0] == 0
        and all(split == children[0][0] for split, _ in children)
    ):
        return Split(
            dim=tree.dim, parts=len(children), step=strides.pop(), children=(children[0][0],)
        ), base
    return Split(
        dim=tree.dim,
        parts=tree.weights,
        step=offsets,
        children=tuple(split for split, _ in children),
    ), base


def tree_placements(tree: Split | None, operators: tuple[Operator, ...]) -> tuple[Placement, ...]:
    """Placements of `tree` for every operator class; cuts of dims that a class lacks are copies."""
    classes: dict[str, set[Dim]] = {}
    for operator in operators:
        class_dims = classes.setdefault(operator.klass.value, set())
        class_dims |= {dim for dim in Dim if has_dim(operator, dim)}
    by_tree: dict[Split | None, list[str]] = {}
    for name, dims in classes.items():
        by_tree.setdefault(_replicate_missing_dims(tree, dims), []).append(name)
    first, *others = by_tree.items()
    # The first placement selects all classes, so that the stream at a stage's border has a place
    # where no operator of its class runs.
    rest = (
        Placement(select=Selector(classes=tuple(names)), split=split) for split, names in others
    )
    return Placement(select=Selector(), split=first[0]), *rest


def _replicate_missing_dims(tree: Split | None, dims: set[Dim]) -> Split | None:
    """The split with each cut of a dim outside `dims` replaced by replication."""
    if tree is None:
        return None
    dim = tree.dim if tree.dim in dims else Dim.REPLICATE
    return replace(
        tree,
        dim=dim,
        children=tuple(_replicate_missing_dims(child, dims) for child in tree.children),
    )
