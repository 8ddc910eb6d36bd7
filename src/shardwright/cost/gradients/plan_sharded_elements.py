"""Elements that one device of a general plan sums, gathers and shards, and its ZeRO stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, repeat

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.gradients.layer_synchronisation_table_classes import (
    KINDS,
    ShardedElements,
)
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.stages.held_parameters import HeldParameters
from shardwright.program.zero_sharding import Party, ShardRules, Sharing


def trainable_parameter_cuts(
    holdings: list[tuple[HeldParameters, ...]], *, device: int, rules: ShardRules
) -> tuple[ShardedElements, ...]:
    """Trainable elements of a device, grouped by the degrees that shard their states.

    Experts last.
    """
    elements_by_cut: dict[tuple[bool, int, int, int, bool], int] = {}
    for h in chain.from_iterable(holdings):
        if not h.trainable:
            continue
        sharing = rules.sharing(h.klass, h.near)
        party = sharing.party(device)
        key = (
            h.klass is ParameterClass.EXPERTS,
            sharing.optimizer,
            party.gradient,
            party.parameter,
            sharing.is_apart(device),
        )
        elements_by_cut[key] = elements_by_cut.get(key, 0) + h.elements * h.layers
    cuts = (
        ShardedElements(elements=n, optimizer=o, gradient=g, parameter=p, apart=apart)
        for (_, o, g, p, apart), n in sorted(elements_by_cut.items())
    )
    return tuple(cuts) or (ShardedElements(elements=0, optimizer=1, gradient=1, parameter=1),)


def frozen_parameter_cuts(
    holdings: list[tuple[HeldParameters, ...]], *, device: int, rules: ShardRules
) -> tuple[ShardedElements, ...]:
    """Frozen elements of a device, grouped by the number of devices that share a copy (ZeRO-3)."""
    elements_by_degree: Counter[int] = Counter()
    for h in chain.from_iterable(holdings):
        if not h.trainable:
            elements_by_degree[rules.party(h.klass, h.near, device).parameter] += (
                h.elements * h.layers
            )
    return tuple(
        ShardedElements(elements=n, optimizer=1, gradient=1, parameter=p)
        for p, n in sorted(elements_by_degree.items())
    )


def is_gathered(party: Party, *, zero: int, on_host: bool = False) -> bool:
    """True if a device gathers the group's parameters for each use: ZeRO-3, sharded or on the host.

    Trained or not.

    Args:
        on_host: `Runtime.parameters_on_host`, where a device that holds all of them copies them up
            for each use too.
    """
    return zero == 3 and (party.parameter > 1 or on_host)


def is_summed_last(sharing: Sharing, device: int, *, zero: int) -> bool:
    """True if ZeRO 2 or 3 leaves this group's gradients whole: reduced once, at the step's end."""
    return sharing.stage(device, zero) < 2 <= zero


def effective_zero_stage(
    holdings: Iterable[HeldParameters], *, device: int, rules: ShardRules, zero: int
) -> int:
    """ZeRO stage a device steps as: highest of its groups; `zero` if `rules.devices` is empty.

    The highest at which it moves anything, where a plan has reduction groups.
    """
    if not rules.devices:
        return zero
    return max((rules.sharing(h.klass, h.near).stage(device, zero) for h in holdings), default=zero)


def element_counts(
    holdings: list[tuple[HeldParameters, ...]],
    layers: tuple[int, ...],
    *,
    device: int,
    rules: ShardRules,
    zero: int,
    on_host: bool,
) -> dict[str, IntArray | FloatArray]:
    """Elements of one layer of each segment, and sharding degrees, by column of `SyncTable`."""
    names = (
        "dense",
        "experts",
        "spread",
        "frozen",
        "frozen_dense",
        "frozen_experts",
        "tied",
        "narrow",
    )
    gathers = ("gathered", "regathered", "narrow_gathered", "narrow_regathered")
    counts: dict[str, IntArray] = {
        name: np.zeros((len(holdings), 1), dtype=np.int64) for name in (*names, *gathers)
    }
    own_shards = {
        name: np.zeros((len(holdings), 1))
        for name in ("own_gathered", "own_regathered", "own_reduced")
    }
    members = [1, 1]
    for b, h in chain.from_iterable(zip(repeat(b), items) for b, items in enumerate(holdings)):
        elements, kind = (
            -(-h.elements * h.layers // layers[b]),
            int(h.klass is ParameterClass.EXPERTS),
        )
        party = rules.party(h.klass, h.near, device)
        for name in (KINDS[kind],) if h.trainable else ("frozen", f"frozen_{KINDS[kind]}"):
            counts[name][b, 0] += elements
        if h.narrow and h.trainable:
            counts["narrow"][b, 0] += elements
        for name in ("gathered", "regathered")[
            : is_gathered(party, zero=zero, on_host=on_host) * (1 + h.backward)
        ]:
            counts[name][b, 0] += elements
            counts[f"narrow_{name}"][b, 0] += elements * h.narrow
            own_shards[f"own_{name}"][b, 0] += elements / party.parameter
        summed_last = is_summed_last(rules.sharing(h.klass, h.near), device, zero=zero)
        own_shards["own_reduced"][b, 0] += (
            elements / party.gradient if h.trainable and not summed_last else 0.0
        )
        members[kind] = max(
            members[kind], 1 if summed_last else party.reduced if h.trainable else party.parameter
        )
    return (
        counts
        | own_shards
        | {
            "shard": np.array(members[:1], dtype=np.int64),
            "expert_shard": np.array(members[1:], dtype=np.int64),
        }
    )
