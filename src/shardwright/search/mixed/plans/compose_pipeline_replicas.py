"""Compose plans from whole numbers of replicas of a few pipeline shapes.

A composition has the replicas and microbatches of each shape that together complete the batch.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.kernel_compilation import compiled
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.mixed.pipelines.microbatches_and_layer_cut_by_deadline import best_cut
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import (
    PricedPipelines,
    ShapeMicrobatches,
    prices_of,
)
from shardwright.search.mixed.pipelines.replica_integer_program import whole_replicas
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedLane, MixedPlan
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts, Terms
from shardwright.search.mixed.stages.zero_sharded_lane_costs import ANY
from shardwright.search.mixed_cluster_certificate import Dual


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Replicas of some pipeline shapes, and the most microbatches of each by a limit."""

    shapes: IntArray
    replicas: IntArray
    microbatches: IntArray


def compositions(
    pipelines: PricedPipelines,
    dual: Dual,
    values: ShapeMicrobatches,
    *,
    replicas: tuple[int, int],
    lanes: int,
    grain: int,
    max_compositions: int,
) -> list[Composition]:
    """Compositions of at most `lanes` shapes that complete the batch by the prices' limit.

    The compositions with the most samples come first.

    Args:
        replicas: fewest and most replicas in all.
        grain: the replicas of each shape are a multiple of this; regular groups reduce gradients
            faster.
        max_compositions: largest number of compositions of pairs.
    """
    samples = pipelines.samples(values)
    shapes = np.flatnonzero(values.exact & (samples > 0))
    if not len(shapes):
        return []
    gains = (samples - pipelines.cost(prices_of(dual)))[shapes]
    ranked = shapes[np.argsort(-gains, kind="stable")]
    results = _pair_compositions(
        pipelines,
        values,
        candidate_shapes(pipelines, values, ranked, pipelines.effort.paired_shapes),
        replicas=replicas,
        grain=grain,
        max_compositions=max_compositions,
    )
    if lanes > 2:
        from_program = _program_composition(
            pipelines,
            values,
            candidate_shapes(pipelines, values, ranked, pipelines.effort.program_shapes),
            replicas=replicas,
            lanes=lanes,
            grain=grain,
        )
        results = [*([from_program] if from_program is not None else []), *results]
    return results


def _pair_compositions(
    pipelines: PricedPipelines,
    values: ShapeMicrobatches,
    shape_indices: IntArray,
    *,
    replicas: tuple[int, int],
    grain: int,
    max_compositions: int,
) -> list[Composition]:
    """Compositions of one or two shapes that complete the batch, those of most samples first.

    A pair has as many replicas of one shape as fit beside any number of the other.
    """
    shapes = pipelines.shapes
    devices = np.array([pool.devices for pool in pipelines.stage_costs.table.pools], dtype=np.int64)
    worth = values.microbatches[shape_indices] * shapes.mbs[shape_indices]
    least, most_of = shapes.least[shape_indices], shapes.most[shape_indices]
    best, counts = _best_pairs(
        worth, shapes.use[shape_indices], least, most_of, devices, replicas[0], replicas[1], grain
    )
    if values.subspace.sharded:
        # Pairs without a sharding lane belong to subspaces in which no lane shards.
        shards = shapes.sharded[shape_indices]
        best[~(shards[:, None] | shards)] = 0
    one, other = np.nonzero(best >= pipelines.batch)
    order = np.lexsort((other, one, -best[one, other]))[:max_compositions]
    found = []
    for i, j in zip(one[order].tolist(), other[order].tolist(), strict=True):
        many = [(i, int(counts[i, j, 0])), (j, int(counts[i, j, 1]))]
        places, numbers = zip(*[(place, number) for place, number in many if number], strict=True)
        picked = shape_indices[list(places)]
        found.append(
            Composition(
                shapes=picked,
                replicas=np.array(numbers, dtype=np.int64),
                microbatches=values.microbatches[picked],
            )
        )
    return found


@compiled
def _best_pairs(
    worth: IntArray,
    use: IntArray,
    least: IntArray,
    most: IntArray,
    devices: IntArray,
    low: int,
    high: int,
    grain: int,
) -> tuple[IntArray, IntArray]:
    """(n, n) most samples of a pair of shapes, (n, n, 2) replicas; the diagonal is one shape.

    (shapes, shapes) samples, and (shapes, shapes, 2) replicas.

    Args:
        least, most: (shapes,) replicas of each.
    """
    n, pools = use.shape
    best = np.zeros((n, n), dtype=np.int64)
    counts = np.zeros((n, n, 2), dtype=np.int64)
    for i in range(n):
        room = min(high, most[i])
        for k in range(pools):
            if use[i, k]:
                room = min(room, devices[k] // use[i, k])
        room = room // grain * grain
        if room >= low and room >= least[i]:
            best[i, i] = room * worth[i]
            counts[i, i, 0] = room
        for j in range(n):
            if i == j:
                continue
            for x in range(-(-least[i] // grain) * grain, room + 1, grain):
                rest = min(high - x, most[j])
                for k in range(pools):
                    if use[j, k]:
                        rest = min(rest, (devices[k] - x * use[i, k]) // use[j, k])
                rest = rest // grain * grain
                done = x * worth[i] + rest * worth[j]
                # Each pair once: the shape of more replicas first.
                first = x > rest or (x == rest and i < j) or most[i] < ANY or most[j] < ANY
                if rest >= least[j] and first and x + rest >= low and done > best[i, j]:
                    best[i, j] = done
                    counts[i, j, 0], counts[i, j, 1] = x, rest
    return best, counts


def _program_composition(
    pipelines: PricedPipelines,
    values: ShapeMicrobatches,
    shape_indices: IntArray,
    *,
    replicas: tuple[int, int],
    lanes: int,
    grain: int,
) -> Composition | None:
    """Composition of at most `lanes` shapes with most samples; None = none completes the batch.

    None where the program finds none that completes the batch.
    """
    shapes, batch = pipelines.shapes, pipelines.batch
    worth = pipelines.samples(values)[shape_indices]
    devices = np.array(
        [pool.devices for pool in pipelines.stage_costs.table.pools], dtype=np.float64
    )
    n, (low, high) = len(shape_indices), replicas
    most = most_replicas(pipelines, shape_indices, devices, worth, max_replicas=high, grain=grain)
    if not most.any():
        return None
    rows = grain * np.concatenate([shapes.use[shape_indices].T, np.ones((1, n))])
    within = np.array([*np.zeros(len(devices)), low]), np.array([*devices, high])
    least = -(-shapes.least[shape_indices] // grain)
    solution = whole_replicas(
        -grain * worth,
        rows,
        within,
        min_replicas=least,
        max_replicas=most,
        max_others=np.zeros(0),
        max_shapes=lanes,
        max_tree_nodes=pipelines.effort.program_nodes,
    )
    if solution is None:
        return None
    replica_counts = grain * solution
    used = np.flatnonzero(replica_counts)
    enough = (
        worth @ replica_counts >= batch
        and (shapes.use[shape_indices].T @ replica_counts <= devices).all()
    )
    enough &= not values.subspace.sharded or bool(shapes.sharded[shape_indices[used]].any())
    return (
        Composition(
            shapes=shape_indices[used],
            replicas=replica_counts[used],
            microbatches=values.microbatches[shape_indices[used]],
        )
        if enough
        else None
    )


def most_replicas(
    pipelines: PricedPipelines,
    shape_indices: IntArray,
    devices: FloatArray,
    worth: FloatArray,
    *,
    max_replicas: int,
    grain: int,
) -> FloatArray:
    """(chosen,) most groups of `grain` replicas that devices and batch allow; 0 if too few.

    0 where a lane that shards has too few replicas then.
    """
    shapes = pipelines.shapes
    most = np.minimum(
        (devices / np.maximum(shapes.use[shape_indices], 1e-9)).min(axis=1),
        np.ceil(pipelines.batch / worth),
    )
    result: FloatArray = np.floor(
        np.minimum(np.minimum(most, max_replicas), shapes.most[shape_indices]) / grain
    )
    return np.where(result * grain >= shapes.least[shape_indices], result, 0.0)


def candidate_shapes(
    pipelines: PricedPipelines, values: ShapeMicrobatches, ranked: IntArray, max_shapes: int
) -> IntArray:
    """Up to `max_shapes` ranked shapes to compose; half of them shard where some lane is to.

    Where some lane is to shard, shapes that shard and shapes that do not.
    """
    if not values.subspace.sharded:
        return distinct_shapes(pipelines, ranked, max_shapes)
    shards = pipelines.shapes.sharded[ranked]
    sharding_shapes = distinct_shapes(pipelines, ranked[shards], max_shapes // 2)
    return np.concatenate(
        [
            sharding_shapes,
            distinct_shapes(pipelines, ranked[~shards], max_shapes - len(sharding_shapes)),
        ]
    )


def distinct_shapes(pipelines: PricedPipelines, ranked: IntArray, max_shapes: int) -> IntArray:
    """The first `max_shapes` of the ranked shapes, at most two that use equal devices."""
    seen: dict[int, int] = {}
    shapes: list[int] = []
    for shape, use in zip(ranked.tolist(), pipelines.use_of[ranked].tolist(), strict=True):
        if seen.setdefault(use, 0) < 2:
            seen[use] += 1
            shapes.append(shape)
        if len(shapes) == max_shapes:
            break
    return np.array(shapes, dtype=np.int64)


def exact_microbatches(
    composition: Composition, pipelines: PricedPipelines
) -> list[tuple[int, int, int]]:
    """(shape, replicas, microbatches) of lanes that complete the batch exactly; [] = none.

    [] = there are none. A shape of which some replicas do one microbatch less becomes two lanes.
    """
    shape_columns, batch = pipelines.shapes, pipelines.batch
    mbs, whole = (column[composition.shapes] for column in (shape_columns.mbs, shape_columns.most))
    spared = pipelines.effort.spared_microbatches
    each = composition.replicas * mbs
    most = composition.microbatches
    options: list[tuple[float, tuple[int, ...]]] = []
    for less in product(*(range(min(spared, int(m) - 1) + 1) for m in most[:-1])):
        some = most[:-1] - np.array(less, dtype=np.int64)
        left = batch - int(some @ each[:-1])
        last, rest = divmod(left, int(each[-1]))
        if rest == 0 and 1 <= last <= most[-1]:
            options.append((float(((most - [*some, last]) / most).max()), (*some.tolist(), last)))
    shapes, replicas = composition.shapes.tolist(), composition.replicas.tolist()
    if options:
        return list(zip(shapes, replicas, min(options)[1], strict=True))
    return _with_divided_shape(shapes, replicas, most.tolist(), mbs.tolist(), whole.tolist(), batch)


def _with_divided_shape(
    shapes: list[int],
    replicas: list[int],
    most: list[int],
    mbs: list[int],
    most_of_class: list[int],
    batch: int,
) -> list[tuple[int, int, int]]:
    """(shape, replicas, microbatches) with one shape in two lanes; [] = none completes the batch.

    The divided shape is not one that shards, as its replicas belong to a class.

    Args:
        most_of_class: (shapes,) most replicas of each shape's class.
    """
    over = sum(x * b * m for x, b, m in zip(replicas, mbs, most, strict=True)) - batch
    for place in (
        place
        for place in np.argsort([-x for x in replicas], kind="stable").tolist()
        if most_of_class[place] >= ANY
    ):
        less, rest = divmod(over, mbs[place])
        down, few = divmod(less, replicas[place])
        if rest == 0 and most[place] - down > (few > 0):
            lanes = [(s, x, m) for s, x, m in zip(shapes, replicas, most, strict=True)]
            lanes[place] = (shapes[place], replicas[place] - few, most[place] - down)
            return [*lanes, *([(shapes[place], few, most[place] - down - 1)] if few else [])]
    return []


def cut_lanes(
    stage_costs: MixedStageCosts,
    terms: Terms,
    pipelines: PricedPipelines,
    lanes: list[tuple[int, int, int]],
    *,
    limit_s: float,
) -> tuple[MixedPlan, float] | None:
    """Plan of lanes cut for the earliest end, seconds of the slowest lane; None = no cut fits.

    None where a lane does not fit.

    Args:
        lanes: (shape, replicas, microbatches) of each.
    """
    mixed_lanes, slowest = [], 0.0
    for shape, replicas, microbatches in lanes:
        rows, stages = (
            pipelines.shapes.rows[shape].tolist(),
            pipelines.shapes.stages[shape].tolist(),
        )
        seconds, sizes = best_cut(terms, (*rows, *stages), microbatches=microbatches, limit=limit_s)
        if not sizes:
            return None
        runs, slowest = 2 if stages[1] else 1, max(slowest, seconds)
        mixed_lanes.append(
            MixedLane(
                rows=tuple(rows[:runs]),
                stages=tuple(stages[:runs]),
                sizes=sizes,
                replicas=replicas,
                microbatches=microbatches,
            )
        )
    return MixedPlan(lanes=tuple(mixed_lanes)), slowest * (1 - 1e-4)
