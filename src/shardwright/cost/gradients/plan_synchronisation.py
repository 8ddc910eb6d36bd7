"""Seconds of a general plan's gradient synchronisation on one device, by layer.

As the table that grids have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.gradients.block_parameter_elements_by_reduction_group import (
    gathered_matrices,
    trained_matrices,
)
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import gradient_bytes, sum_sizes
from shardwright.cost.gradients.layer_reduce_gather_seconds_and_link_shares import (
    LayerElements,
    SumSpans,
    broadcast_seconds,
    fetch_seconds,
    layer_sync_seconds,
    wire_shares,
)
from shardwright.cost.gradients.layer_synchronisation_table_classes import (
    FETCHES,
    OWNERS,
    PASSES,
    SYNCS,
    SyncTable,
)
from shardwright.cost.gradients.optimizer_state_owner_exchange_seconds import owner_seconds
from shardwright.cost.gradients.plan_sharded_elements import (
    element_counts,
    frozen_parameter_cuts,
    is_summed_last,
    trainable_parameter_cuts,
)
from shardwright.cost.gradients.reduction_groups_of_plan_gradient_buckets import placed_in_buckets
from shardwright.cost.network.grid_groups_and_collective_seconds import Network, move_seconds
from shardwright.cost.network.networks_of_plan_devices import (
    group_span,
    network_of_devices,
    own_span,
)
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.model.ir.block import Block
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.model.tensors_without_gradient import without_gradient
from shardwright.program.stages.held_parameters import HeldParameters
from shardwright.program.stages.stage_segments import Segment
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import ShardRules, Sharing


def device_sync_table(
    problem: Problem,
    held: list[tuple[HeldParameters, ...]],
    *,
    device: int,
    segments: tuple[Segment, ...],
    rules: ShardRules,
    zero: int,
) -> SyncTable:
    """Synchronisation seconds and elements of one layer of each segment on one device.

    A table of one row.

    A layer below the runtime's bucket size shares its bucket's latency with its neighbours, as in
    `sync_table`. Groups that sum parts of one parameter do so at the same time, each in its own
    communicator (PyTorch runs those on streams of their own): they take as long as the slowest, or
    as all together do on the links of the device itself. Of several reduction groups each sums and
    gathers among itself the elements of its devices, parts that are summed in unlike groups in one
    go, and sends pieces to the owners of optimizer states, group by group. Elements that several
    lanes hold and none shards are summed once a step, and gathered behind the update, whatever the
    stage of the others.

    Args:
        device: device that holds the parameters.
        segments: segments of the layers. Parameters of some layers (the others are shared with
            other stages) are spread over all.
        zero: see `effective_zero_stage`.
    """
    blocks, layers = len(held), tuple(segment.count for segment in segments)
    held, beyond = placed_in_buckets(held, layers=layers)
    seconds = {name: np.zeros((blocks, 1)) for name in SYNCS}
    tied = {"all_reduce": np.zeros(1), "reduce": np.zeros(1)}
    owners = {name: np.zeros((blocks, 1)) for name in OWNERS}

    def reduced(items: Iterable[HeldParameters]) -> _ElementsByGroup:
        return _elements_by_group(
            (h for h in items if h.trainable), device=device, rules=rules, level=1
        )

    trained = [reduced(items) for items in held]
    for b, (items, segment) in enumerate(zip(held, segments, strict=True)):
        price = partial(
            _collective_seconds,
            problem,
            device,
            price=partial(_sum_seconds, problem, segment.block, trained),
            count=segment.count,
        )
        sharing = [rules.sharing(h.klass, h.near) for h in items]
        summed_last = [
            is_summed_last(group_sharing, device, zero=zero) for group_sharing in sharing
        ]
        gathered_after_update = [
            is_last or (zero == 3 and group_sharing.party(device).parameter == 1)
            for is_last, group_sharing in zip(summed_last, sharing, strict=True)
        ]
        sums, tied_seconds = price(
            reduced(h for h, is_last in zip(items, summed_last, strict=True) if not is_last)
        )
        for name in tied:
            tied[name] += tied_seconds[name] * segment.count
        if any(summed_last):
            summed, tied_seconds = price(reduced(compress(items, summed_last)))
            tied["reduce"] += tied_seconds["reduce"] * segment.count
            owners["to_owners"][b] += summed["reduce"]
        if any(gathered_after_update):
            owners["from_owners"][b] += price(reduced(compress(items, gathered_after_update)))[0][
                "gather"
            ]
        for turn in range(len(PASSES) if zero == 3 else 0):
            gathered = _elements_by_group(
                (h for h in items if h.backward or not turn), device=device, rules=rules, level=3
            )
            sums |= _collective_seconds(
                problem,
                device,
                gathered,
                partial(_zero3_gather_columns, problem, segment.block, turn),
                count=segment.count,
            )[0]
        for name, spent in sums.items():
            seconds[name][b] += spent
    for b, items in enumerate(held):
        exchanged, late_s = _owner_exchange_seconds(problem, items, rules=rules, count=layers[b])
        tied["reduce"] += late_s * layers[b]
        for name, spent in exchanged.items():
            owners[name][b] += spent
    for group_sharing in beyond:
        network = network_of_devices(problem, group_sharing.members)
        volume = np.array(
            [group_sharing.total * float(gradient_bytes(problem.job, problem.runtime))]
        )
        seconds_of_sum = move_seconds(
            Collective.ALL_REDUCE,
            volume=volume,
            span=group_span(group_sharing.members, network),
            network=network,
        )
        for name in ("all_reduce", "reduce", "scatter"):
            seconds[name][group_sharing.segment, 0] += (
                float(seconds_of_sum[0]) * group_sharing.elements / group_sharing.total
            )
    columns: dict[str, Any] = (
        seconds | owners | {f"tied_{name}": spent for name, spent in tied.items()}
    )
    columns |= element_counts(
        held,
        layers,
        device=device,
        rules=rules,
        zero=zero,
        on_host=problem.runtime.parameters_on_host,
    )
    cuts, frozen = (
        of(held, device=device, rules=rules)
        for of in (trainable_parameter_cuts, frozen_parameter_cuts)
    )
    return SyncTable(**columns, cuts=cuts, frozen_cuts=frozen)


def _owner_exchange_seconds(
    problem: Problem, items: tuple[HeldParameters, ...], *, rules: ShardRules, count: int
) -> tuple[dict[str, float], float]:
    """({name: seconds} of a layer's exchanges with state owners, seconds for tied weights).

    By name; tied gradients wait for those of other stages.
    """
    elements_of_groups: Counter[tuple[DeviceList, Sharing]] = Counter()
    for h in (h for h in items if h.trainable):
        sharing = rules.sharing(h.klass, h.near)
        if len(sharing.parties) > 1:
            elements_of_groups[h.group, sharing] += h.elements * h.layers
    seconds_by_name, tied_seconds, sizes = (
        dict.fromkeys(OWNERS, 0.0),
        0.0,
        sum_sizes(problem.job, problem.runtime),
    )
    for (group, sharing), elements in elements_of_groups.items():
        spent = owner_seconds(problem, group, sharing, elements=elements / count, sizes=sizes)
        if group != sharing.devices:
            tied_seconds += float(spent.pop("to_owners")[0])
        for name, seconds in spent.items():
            seconds_by_name[name] += float(seconds[0])
    return seconds_by_name, tied_seconds


class _MovedGroup(NamedTuple):
    """Key of elements that one collective moves: group, sharers of states, class, shard, parts."""

    group: DeviceList
    near: DeviceList
    klass: ParameterClass
    shard: int
    parts: int


_ElementsByGroup = dict[_MovedGroup, tuple[int, int]]
"""Elements of all layers of a segment that are moved together, and of them those that are quantised
in a recipe of few bits."""


def _elements_by_group(
    items: Iterable[HeldParameters], *, device: int, rules: ShardRules, level: int
) -> _ElementsByGroup:
    """Elements, and of them quantised ones, grouped by the collective that moves them.

    Args:
        level: ZeRO stage that begins to shard the state for which they are moved.
    """
    elements_of_groups: dict[_MovedGroup, list[tuple[int, int]]] = {}
    for h in items:
        kind = ParameterClass.EXPERTS if h.klass is ParameterClass.EXPERTS else ParameterClass.DENSE
        sharing = rules.sharing(h.klass, h.near)
        party = sharing.party(device)
        parts = h.parts if len(sharing.parties) == 1 else 1
        key = _MovedGroup(
            *sharing.among(device, h.group),
            kind,
            party.reduced if level == 1 else party.parameter,
            parts,
        )
        elements_of_groups.setdefault(key, []).append(
            (h.elements * h.layers, h.elements * h.layers * h.narrow)
        )
    return {
        key: (
            sum([elements for elements, _ in parts_moved]),
            sum([narrow for _, narrow in parts_moved]),
        )
        for key, parts_moved in elements_of_groups.items()
    }


def _sum_seconds(
    problem: Problem,
    block: Block,
    trained: list[_ElementsByGroup],
    key: _MovedGroup,
    moved: LayerElements,
    groups: SumSpans,
    network: Network,
) -> dict[str, FloatArray]:
    """{name: seconds} of summing and gathering a layer's trained elements (`layer_sync_seconds`).

    Args:
        trained: elements of all segments, which broadcasts return together.
    """
    sizes, matrices = (
        sum_sizes(problem.job, problem.runtime),
        trained_matrices(block.operators, experts=key.klass is ParameterClass.EXPERTS),
    )
    seconds = layer_sync_seconds(moved._replace(matrices=matrices), groups, network, sizes)
    if problem.runtime.zero1_broadcasts:
        all_elements = sum(segment[key][0] for segment in trained if key in segment)
        seconds["gather"] = (
            broadcast_seconds(
                np.array([float(all_elements)]), groups, network=network, stored=sizes.stored
            )
            / all_elements
            * moved.elements
        )
    return seconds


def _zero3_gather_columns(
    problem: Problem,
    block: Block,
    turn: int,
    key: _MovedGroup,
    moved: LayerElements,
    groups: SumSpans,
    network: Network,
) -> dict[str, FloatArray]:
    """{fetch: seconds, parts: list tensors} of ZeRO-3's gather of one group's layer elements.

    Args:
        turn: 0 before its forward, 1 before its backward.
    """
    matrices = gathered_matrices(
        block.operators, without_gradient(block), experts=key.klass is ParameterClass.EXPERTS
    )[turn]
    seconds = fetch_seconds(
        moved._replace(matrices=matrices), groups, network, sum_sizes(problem.job, problem.runtime)
    )
    return dict(zip(FETCHES[turn], seconds, strict=True))


def _collective_seconds(
    problem: Problem,
    device: int,
    moved: _ElementsByGroup,
    price: Callable[..., dict[str, FloatArray]],
    *,
    count: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """{name: seconds} of one layer's collectives, and {name: seconds} of those for tied weights.

    Sums of tied weights wait for those of other stages.
    """
    seconds, tied, slowest, own_links = (defaultdict[str, float](float) for _ in range(4))
    for key, (elements, narrow) in (
        (key, elements_moved) for key, elements_moved in moved.items() if len(key.group) > 1
    ):
        network = network_of_devices(problem, key.group)
        groups = _sum_spans(network, key.group, key.near, key.shard)
        layer = LayerElements(np.array([elements / count]), narrow=np.array([narrow / count]))
        seconds_alone = price(key, layer, groups, network)
        if key.parts > 1 and key.near == key.group:
            sides = [
                own_span(problem, members, device)
                for members in _members_of(key.group, key.near, key.shard)
            ]
            spans = SumSpans(sides[0], sides[1], sides[2], groups.shard)
            own_side = price(key, layer, spans, network_of_devices(problem, (device,)))
            for name, spent in seconds_alone.items():
                slowest[name], own_links[name] = (
                    max(slowest[name], float(spent[0])),
                    own_links[name] + float(own_side[name][0]),
                )
            continue
        for name, spent in seconds_alone.items():
            is_tied = key.near != key.group and name in _OF_GRADIENTS
            (tied if is_tied else seconds)[name] += float(spent[0])
    for name in slowest:
        seconds[name] += max(slowest[name], own_links[name])
    return seconds, tied


_OF_GRADIENTS = ("all_reduce", "reduce", "scatter", "apart")


def _sum_spans(network: Network, group: DeviceList, near: DeviceList, shard: int) -> SumSpans:
    """Spans of a device's sharding group, of the holders of its piece, and of the whole group."""
    spans = [group_span(members, network) for members in _members_of(group, near, shard)]
    return SumSpans(spans[0], spans[1], spans[2], np.array([shard], dtype=np.int64))


def _members_of(group: DeviceList, near: DeviceList, shard: int) -> tuple[DeviceList, ...]:
    """Devices that share a copy of the states, devices that hold the same piece, and all."""
    return (*sharing_groups(group, near, shard), group)


def sharing_groups(
    group: DeviceList, near: DeviceList, shard: int, *, device: int | None = None
) -> tuple[DeviceList, DeviceList]:
    """(devices that hold one copy of the states with a device, those that hold its part of them).

    The first are its run of `shard` members of `near` then `group`, the second every `shard`-th
    member. Other stages' holders of a tied weight come last.

    States of 64 sharded over eight are runs of eight consecutive members; the same piece is held by
    every eighth (zoo 6).

    Args:
        device: None = the first of `near`.
    """
    ordered = (
        near if near == group else DeviceList.of((*near, *sorted(set(group).difference(near))))
    )
    place = 0 if device is None else ordered.index(device)
    run = place - place % shard
    if len(ordered) % shard:
        same_part = DeviceList.of((ordered[place], *ordered[len(near) :]))
        return near[run : run + shard], same_part
    return ordered[run : run + shard], ordered[place % shard :: shard]


def group_shares(problem: Problem, group: DeviceList, *, shard: int) -> FloatArray:
    """(tiers, 1) share of a device's link on each tier that its group's reduction fills.

    Tiers of the group's network; see `wire_shares`.

    Args:
        shard: members that share one sum.
    """
    network = network_of_devices(problem, group)
    return wire_shares(
        _sum_spans(network, group, group, shard),
        network=network,
        bucket=problem.runtime.bucket_bytes,
    )
