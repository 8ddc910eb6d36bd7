"""The label program equals brute force over cuts and options, on hundreds of small random
arrays."""

import itertools
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from shardwright.cost.step.shared_scalar_cost_formulas import reserved_bytes, temporary_bytes
from shardwright.kernel_compilation import python_form
from shardwright.search.joint import price_layer_runs_and_splits_of_each_rank as label_options
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import PRECISION, bound_pipeline
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import (
    Pipeline,
    Splits,
    in_flight,
)
from tests.tiers import many, seeds

INSTANCES = many(30, 80)
"""In a block."""
HUGE = 1e12


def random_case(generator: random.Random) -> tuple[Splits, Pipeline]:
    length, splits = generator.randint(3, 6), generator.randint(1, 3)
    ranks = generator.randint(1, min(4, length))
    values = np.zeros((splits, label_options.HOST_FULL + 1, length))
    for s in range(splits):
        for j in range(length):
            heavy = generator.choice((1, 1, 1, 4))
            values[s, label_options.FORWARD, j] = generator.uniform(1, 2) * heavy
            values[s, label_options.BACKWARD, j] = generator.uniform(2, 4) * heavy
            values[s, label_options.SELECTIVE, j] = generator.uniform(0, 0.5)
            values[s, label_options.FULL, j] = values[s, label_options.FORWARD, j]
            values[s, label_options.SAVED, j] = generator.randint(6, 12)
            values[s, label_options.SAVED_SELECTIVE, j] = values[
                s, label_options.SAVED, j
            ] - generator.randint(0, 3)
            values[s, label_options.SAVED_FULL, j] = 1
            values[s, label_options.HOST_SELECTIVE, j] = generator.choice((0, 0, 2, 5))
            values[s, label_options.HOST_FULL, j] = generator.choice((0, 1, 4))
            values[s, label_options.STATIC, j] = generator.randint(1, 10)
            values[s, label_options.UPDATE, j] = generator.uniform(0, 1)
            values[s, label_options.GATHER, j] = generator.uniform(0, 1)
            values[s, label_options.REDUCE, j] = generator.uniform(0, 1)
    sums = np.concatenate(
        [np.zeros((splits, values.shape[1], 1)), np.cumsum(values, axis=2)], axis=2
    )
    again = np.stack(
        [
            values[:, label_options.SAVED] - values[:, label_options.SAVED_SELECTIVE],
            values[:, label_options.SAVED] - values[:, label_options.SAVED_FULL],
        ],
        axis=1,
    )
    fixed = np.array(
        [[generator.uniform(0, 1) for _ in range(label_options.SLOWER + 1)] for _ in range(splits)]
    )
    fixed[:, label_options.BORDER] = fixed[0, label_options.BORDER]
    pipe = Pipeline(
        ranks=ranks,
        chunks=1,
        microbatches=generator.randint(1, 6),
        capacity=generator.choice((25.0, 50.0, 100.0, 1e9)),
        reserve=1.0 + generator.choice((0.0, 0.1)),
        workspace=1.0,
        blocking=generator.random() < 0.5,
        gathers_first=generator.random() < 0.5,
        reduces_last=generator.random() < 0.5,
        host_room=generator.choice((float("inf"), 4.0, 12.0, 30.0)),
        sharing=generator.choice([n for n in range(1, ranks + 1) if ranks % n == 0]),
    )
    return Splits(sums=sums, again=again, fixed=fixed), pipe


def rank_numbers(
    splits: Splits, pipe: Pipeline, k: int, i: int, j: int, option: tuple[int, int, int]
) -> dict[str, float] | None:
    """A rank's numbers, written down again from their meaning; None if it does not fit."""
    s, y, x = option
    value = np.diff(splits.sums[s], axis=1)
    fixed = splits.fixed[s]
    p, m, last = pipe.ranks, pipe.microbatches, value.shape[1]
    full, some, rest = slice(i, i + x), slice(i + x, i + x + y), slice(i + x + y, j)
    kept = (
        value[label_options.SAVED_FULL, full].sum()
        + value[label_options.SAVED_SELECTIVE, some].sum()
        + value[label_options.SAVED, rest].sum()
    )
    made = max([0.0, *splits.again[s, 1, full], *splits.again[s, 0, some]])
    head = j == last
    logits, blocks = (
        (fixed[label_options.LOGITS], fixed[label_options.LOGITS_BLOCKS]) if head else (0.0, 0.0)
    )
    end = fixed[label_options.END_BYTES] if head or i == 0 else 0.0
    temporary = python_form(temporary_bytes)(made, end, logits)
    static = (
        value[label_options.STATIC, i:j].sum()
        + pipe.workspace
        + (fixed[label_options.COPIED] if head and k else 0.0)
    )
    allocated = static + in_flight(p, 1, k, m) * kept + logits + temporary
    reserved = python_form(reserved_bytes)(
        allocated, temporary, logits, blocks + made + end, pipe.reserve
    )
    host = in_flight(p, 1, k, m) * (
        value[label_options.HOST_FULL, full].sum() + value[label_options.HOST_SELECTIVE, some].sum()
    )
    if (
        reserved * (1 - 1e-9) + fixed[label_options.OUTSIDE] > pipe.capacity
        or host > pipe.host_room
    ):
        return None
    forward = value[label_options.FORWARD, i:j].sum() + fixed[label_options.SCALES]
    backward = (
        value[label_options.BACKWARD, i:j].sum()
        + fixed[label_options.SCALES]
        + value[label_options.FULL, full].sum()
    )
    backward += value[label_options.SELECTIVE, some].sum()
    update = value[label_options.UPDATE, i:j].sum() + (
        fixed[label_options.TIED] if k in (0, p - 1) else 0.0
    )
    gather, reduce = value[label_options.GATHER, i:j].sum(), value[label_options.REDUCE, i:j].sum()
    update += 0.0 if pipe.gathers_first else gather
    held = fixed[label_options.BORDER] if pipe.blocking else 0.0
    held_forward, held_backward = held * (k < p - 1), held * (k > 0)
    sends = m * (held_forward + held_backward) - held if p > 1 else 0.0
    slower = fixed[label_options.SLOWER]
    return {
        "host": host,
        "update": update,
        "each": forward + backward + held_forward + held_backward,
        "apart": held_backward,
        "way": forward + backward + (2 * fixed[label_options.BORDER] if k < p - 1 else 0.0),
        "work": m * (forward + backward) + sends + update,
        "drain": (
            (m - 1) * (backward + held_backward)
            + max(m - p + k, 0) * (forward + held_forward)
            + update
        ),
        "alone": (
            m * (forward + backward)
            + sends
            + update
            + reduce * (1.0 if pipe.reduces_last else slower)
            + (gather * slower if pipe.gathers_first else 0.0)
        ),
        "begin": reduce / label_options.PIECES + (gather if pipe.gathers_first else 0.0),
    }


def options_of(splits: Splits, pipe: Pipeline, k: int, i: int, j: int) -> list[dict[str, float]]:
    found = []
    for s in range(len(splits.sums)):
        for x in range(j - i + 1):
            for y in range(j - i - x + 1):
                numbers = rank_numbers(splits, pipe, k, i, j, (s, y, x))
                if numbers is not None:
                    found.append(numbers)
    return found


def trips(numbers: dict[str, float], trip: float, m: int, flying: int) -> float:
    """Round trips one after another, every number of them tried."""
    chains = [
        a * trip + (a - 1) * numbers["apart"] + (m - 1 - (a - 1) * flying) * numbers["each"]
        for a in range(2, m + 1)
        if (a - 1) * flying < m
    ]
    return max(chains, default=0.0)


def brute_force(splits: Splits, pipe: Pipeline) -> tuple[float, int]:
    """The least bound over all cuts and options, and how many there are. The way on from a rank is
    the least of the whole instance, as in `bound_pipeline`.
    """
    length, p, m = splits.sums.shape[2] - 1, pipe.ranks, pipe.microbatches
    members: list[list[list[dict[str, float]]]] = []
    rest: dict[tuple[int, int], float] = {}
    for inner in itertools.combinations(range(1, length), p - 1):
        bounds = (0, *inner, length)
        members.append([options_of(splits, pipe, k, bounds[k], bounds[k + 1]) for k in range(p)])
        for k in range(p + 1):
            # What stands before rank k need not fit for that.
            if all(members[-1][k:]):
                on = sum(min(o["way"] for o in rank) for rank in members[-1][k:])
                rest[k, bounds[k]] = min(rest.get((k, bounds[k]), float("inf")), on)
    if (0, 0) not in rest:
        return float("inf"), 0
    way, best, count = rest[0, 0], float("inf"), 0
    inners = itertools.combinations(range(1, length), p - 1)
    for member, inner in zip(members, inners, strict=True):
        bounds = (0, *inner, length)
        for chosen in itertools.product(*member):
            count += 1
            node = np.array([o["host"] for o in chosen]).reshape(-1, pipe.sharing).sum(axis=1)
            if (node > pipe.host_room).any():
                continue
            before, worst = chosen[0]["begin"], way * ((m - 1) // p + 1)
            for k, numbers in enumerate(chosen):
                trip = numbers["way"] + rest[k + 1, bounds[k + 1]]
                worst = max(
                    worst,
                    before + numbers["work"],
                    max(way, before + trip) + numbers["drain"],
                    numbers["alone"],
                )
                worst = max(
                    worst, before + trips(numbers, trip, m, min(m, p - k)) + numbers["update"]
                )
                before += numbers["way"]
            best = min(best, worst)
    return best, count


@pytest.mark.parametrize("block", seeds(1, 16))
def test_labels_equal_brute_force(
    block: int, record_property: Callable[[str, object], None]
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * INSTANCES, (block + 1) * INSTANCES):
        splits, pipe = random_case(random.Random(seed))
        best, count = brute_force(splits, pipe)
        if count > 200_000:
            continue
        solved = bound_pipeline(splits, pipe, limit=HUGE, alike=False)
        seen.update(instances=1, members=count, infeasible=int(best == float("inf")))
        if best == float("inf"):
            assert not solved.cuts
            continue
        assert solved.lower_s <= best * (1 + 1e-12), seed
        tight = solved.lower_s >= best * (1 - 2 * PRECISION)
        seen.update(tight=int(tight))
        # An answer just below the limit is found, and a limit below every member is refused with
        # itself as the bound.
        refused = bound_pipeline(splits, pipe, limit=solved.lower_s * (1 - PRECISION), alike=False)
        assert not refused.cuts
        for cut in solved.cuts:
            assert sum(choice.layers for choice in cut) == splits.sums.shape[2] - 1
            assert len(cut) == pipe.ranks
    for name, number in seen.items():
        record_property(name, number)
    assert seen["instances"] >= INSTANCES // 2
    assert seen["infeasible"]
    assert seen["tight"] == seen["instances"] - seen["infeasible"]
