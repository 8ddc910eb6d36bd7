"""Lists of steps that copy full values to the devices that want them."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.program.layout.groups_of_one_device_per_class import transversals
from shardwright.program.transition.pieces_by_holding_and_wanting_devices import (
    Component,
    Group,
    LayoutPiece,
    connected,
)
from shardwright.program.transition.transition_steps_and_symbolic_proof import (
    Act,
    Flow,
    Load,
    Message,
    StepKind,
    TransitionStep,
    add,
    all_gather_act,
    even_ranges,
    message_loads,
    rooted_act,
)

Demand = tuple[int, int, int]
"""(consumer, low, high)."""


def copy_alternatives(component: Component, pieces: Sequence[LayoutPiece]) -> list[tuple[Act, ...]]:
    """Alternative lists of steps, each of which brings every piece to all devices that lack it.

    They are exact all-gathers, then messages, broadcasts, or distinct shares that are gathered
    where they are wanted.

    They are exact all_gathers, then messages, broadcasts, or distinct shares that are gathered
    where they are wanted.
    """
    pieces = [piece for piece in pieces if piece.lacking]
    if not pieces:
        return [()]
    if not component.collectives:
        return [_direct_messages(component, pieces)]
    gathered, ungathered = _all_gathers(component, pieces)
    if not ungathered:
        return [gathered]
    ways = (
        _direct_messages(component, ungathered),
        _broadcasts(component, ungathered),
        _scatter_and_gather(component, ungathered),
    )
    return [(*gathered, *way) for way in ways if way is not None]


def _all_gathers(
    component: Component, pieces: Sequence[LayoutPiece]
) -> tuple[tuple[Act, ...], list[LayoutPiece]]:
    """(all-gathers of pieces whose consumers hold disjoint shares, pieces not brought by them).

    (all-gathers, pieces that they do not bring): the members of a group hold disjoint shares of the
    elements that all of them want.
    """
    by_wanted: dict[Group, dict[Group, list[LayoutPiece]]] = {}
    for piece in pieces:
        holders = tuple(sorted(set(piece.full) & set(piece.wanted)))
        by_wanted.setdefault(piece.wanted, {}).setdefault(holders, []).append(piece)
    acts, ungathered = [], []
    for wanted, classes in by_wanted.items():
        members = [device for group in classes for device in group]
        even_classes = len({len(group) for group in classes}) == 1
        if (
            len(classes) < 2
            or not even_classes
            or len(members) != len(wanted)
            or len(set(members)) != len(wanted)
        ):
            ungathered += [piece for shares in classes.values() for piece in shares]
            continue
        groups = transversals(list(classes), island=component.island)
        owner = {device: shares for group, shares in classes.items() for device in group}
        flows = [
            [
                Flow(
                    piece.low,
                    piece.high,
                    (device,),
                    tuple(other for other in group if other != device),
                )
                for device in group
                for piece in owner[device]
            ]
            for group in groups
        ]
        acts.append(all_gather_act(component, StepKind.ALL_GATHER, groups, flows))
    return tuple(joined_steps(acts)), ungathered


def joined_steps(acts: Sequence[Act]) -> list[Act]:
    """Merge acts of one kind and group size on different devices into one act."""
    joined_acts: list[Act] = []
    open_acts: dict[tuple[StepKind, int], list[int]] = {}
    members: list[set[int]] = []
    for act in acts:
        devices = {device for group in act.step.groups for device in group}
        key = act.step.kind, len(act.step.groups[0]) if act.step.groups else 0
        waiting = open_acts.setdefault(key, [])
        index = (
            next((i for i in waiting if members[i].isdisjoint(devices)), None) if devices else None
        )
        if index is None:
            waiting.append(len(joined_acts))
            joined_acts.append(act)
            members.append(devices)
            continue
        members[index] |= devices
        act_there = joined_acts[index]
        joined_acts[index] = Act(
            step=TransitionStep(
                kind=act.step.kind,
                groups=act_there.step.groups + act.step.groups,
                elements=act_there.step.elements + act.step.elements,
                sends=act_there.step.sends + act.step.sends,
            ),
            flows=act_there.flows + act.flows,
            sent=act_there.sent | act.sent,
            received=act_there.received | act.received,
            crossing=act_there.crossing + act.crossing,
        )
    return joined_acts


class _Senders:
    """Choice of the sender of each message: the nearest island's least loaded device.

    In device order where loads are equal.
    """

    def __init__(self, component: Component) -> None:
        self.component = component
        self.load: Load = {}
        self.near: dict[tuple[Group, int], Group] = {}

    def eligible(self, providers: Group, consumer: int) -> Group:
        """Providers in the consumer's island; all providers if its island has none."""
        home = self.component.island(consumer)
        if (providers, home) not in self.near:
            in_island = tuple(
                device for device in providers if self.component.island(device) == home
            )
            self.near[providers, home] = in_island or providers
        return self.near[providers, home]

    def flows(self, providers: Group, demands: Sequence[Demand]) -> list[Flow]:
        """Messages that meet the demands for one piece, with balanced providers.

        Each provider serves a run of consecutive demands.
        """
        by_eligible: dict[Group, list[Demand]] = {}
        for demand in demands:
            by_eligible.setdefault(self.eligible(providers, demand[0]), []).append(demand)
        flows: list[Flow] = []
        for eligible, demands_there in by_eligible.items():
            quotas = self._quotas(eligible, sum(high - low for _, low, high in demands_there))
            queue = iter(zip(eligible, quotas, strict=True))
            provider, quota = next(queue)
            for consumer, low, high in demands_there:
                while low < high:
                    while not quota:
                        provider, quota = next(queue)
                    taken = min(quota, high - low)
                    flows.append(Flow(low, low + taken, (provider,), (consumer,)))
                    add(self.load, provider, taken)
                    low, quota = low + taken, quota - taken
        return flows

    def _quotas(self, providers: Group, total: int) -> list[int]:
        """Elements that each provider sends so that the total send load is balanced."""
        loads = [self.load.get(device, 0) for device in providers]
        order = sorted(range(len(loads)), key=lambda i: (loads[i], i))
        used, level_sum = len(order), sum(loads)
        while used > 1 and loads[order[used - 1]] * used > level_sum + total:
            used -= 1
            level_sum -= loads[order[used]]
        quotas = [0] * len(loads)
        level, extra = divmod(level_sum + total, used)
        for i in order[:used]:
            quotas[i] = max(level - loads[i], 0)
        for i in sorted(order[:used]):
            if extra:
                quotas[i] += 1
                extra -= 1
        return self._exact(quotas, total)

    @staticmethod
    def _exact(quotas: list[int], total: int) -> list[int]:
        """Quotas reduced from the last provider backward until they add up to `total`."""
        for i in reversed(range(len(quotas))):
            surplus = sum(quotas) - total
            if surplus <= 0:
                break
            quotas[i] -= min(quotas[i], surplus)
        return quotas


def _direct_messages(component: Component, pieces: Sequence[LayoutPiece]) -> tuple[Act, ...]:
    """Messages to devices that lack a piece: collectives where they form one, else sends."""
    senders = _Senders(component)
    flows = []
    for piece in sorted(pieces, key=lambda piece: len(piece.full)):
        flows += senders.flows(
            piece.full, [(device, piece.low, piece.high) for device in piece.lacking]
        )
    return as_collectives(component, flows)


def as_collectives(component: Component, flows: Sequence[Flow]) -> tuple[Act, ...]:
    """Messages as all-to-all, scatter or gather steps where they form one, else as sends.

    A collective only where one may be run.
    """
    stands = connected([flow.sources + flow.targets for flow in flows])
    parts: dict[int, list[Flow]] = {}
    for flow in flows:
        parts.setdefault(stands[flow.sources[0]], []).append(flow)
    acts, sends = [], []
    for part in parts.values():
        kind, group = _collective_of(component, part)
        if kind is StepKind.SEND:
            sends += part
            continue
        sent, received, crossing = message_loads(component, part)
        busiest = max(*sent.values(), *received.values())
        step = TransitionStep(
            kind=kind, groups=(group,), elements=(-(-busiest * len(group) // (len(group) - 1)),)
        )
        acts.append(
            Act(step=step, flows=tuple(part), sent=sent, received=received, crossing=crossing)
        )
    steps = joined_steps(acts)
    if sends:
        sent, received, crossing = message_loads(component, sends)
        step = TransitionStep(kind=StepKind.SEND, sends=_messages(sends))
        steps.append(
            Act(step=step, flows=tuple(sends), sent=sent, received=received, crossing=crossing)
        )
    return tuple(steps)


def _messages(flows: Sequence[Flow]) -> tuple[Message, ...]:
    """(source, target, elements) of each pair of devices, summed over flows."""
    sizes: dict[tuple[int, int], int] = {}
    for flow in flows:
        pair = flow.sources[0], flow.targets[0]
        sizes[pair] = sizes.get(pair, 0) + flow.high - flow.low
    return tuple((source, target, size) for (source, target), size in sorted(sizes.items()))


def _collective_of(component: Component, flows: Sequence[Flow]) -> tuple[StepKind, Group]:
    """(kind, group) of the collective that connected messages form; SEND if they form none."""
    pairs = {(flow.sources[0], flow.targets[0]) for flow in flows}
    senders, receivers = {source for source, _ in pairs}, {target for _, target in pairs}
    group = tuple(sorted(senders | receivers))
    ranges = {(flow.low, flow.high) for flow in flows}
    if not component.collectives or not component.may_gather(group):
        return StepKind.SEND, group
    if senders == receivers and (len(pairs) > len(group) or component.keeps.issuperset(group)):
        return StepKind.ALL_TO_ALL, group
    if len(senders) == 1 and len(receivers) > 1 and len(ranges) == len(flows):
        return StepKind.SCATTER, (*senders, *sorted(receivers))
    if len(receivers) == 1 and len(senders) > 1:
        return StepKind.GATHER, (*receivers, *sorted(senders))
    return StepKind.SEND, group


def _broadcasts(component: Component, pieces: Sequence[LayoutPiece]) -> tuple[Act, ...] | None:
    """Broadcasts of each piece from its holders to the devices that lack it; None if none pays.

    Each holder serves its share of the devices; a single device gets a send. None if no holder has
    two.
    """
    spans: dict[Group, list[tuple[int, int]]] = {}
    to_single_devices: list[LayoutPiece] = []
    senders = _Senders(component)
    for piece in pieces:
        consumers_by_providers: dict[Group, list[int]] = {}
        for device in piece.lacking:
            consumers_by_providers.setdefault(senders.eligible(piece.full, device), []).append(
                device
            )
        for providers, consumers in consumers_by_providers.items():
            if len(consumers) <= len(providers):
                to_single_devices.append(
                    LayoutPiece(
                        low=piece.low,
                        high=piece.high,
                        full=providers,
                        parts=(),
                        wanted=(*providers, *consumers),
                    )
                )
                continue
            for provider, (low, high) in zip(
                providers, even_ranges(0, len(consumers), len(providers)), strict=True
            ):
                provider_island = component.island(provider)
                chain = sorted(
                    consumers[low:high],
                    key=lambda i: (component.island(i) != provider_island, component.island(i), i),
                )
                if not component.may_gather((provider, *chain)):
                    return None
                spans.setdefault((provider, *chain), []).append((piece.low, piece.high))
    if not spans:
        return None
    acts = joined_steps(
        [
            rooted_act(component, StepKind.BROADCAST, (group,), (ranges,))
            for group, ranges in spans.items()
        ]
    )
    return (*acts, *(_direct_messages(component, to_single_devices) if to_single_devices else ()))


def _scatter_and_gather(
    component: Component, pieces: Sequence[LayoutPiece]
) -> tuple[Act, ...] | None:
    """Messages with distinct shares of a piece, then an all-gather of the shares; None if useless.

    For the devices that lack the piece. None if no two devices lack the same piece.
    """
    by_lacking: dict[Group, list[LayoutPiece]] = {}
    for piece in pieces:
        by_lacking.setdefault(piece.lacking, []).append(piece)
    if all(len(devices) == 1 for devices in by_lacking) or not all(
        map(component.may_gather, by_lacking)
    ):
        return None
    senders = _Senders(component)
    flows: list[Flow] = []
    gathers: list[Act] = []
    for devices, pieces_lacking in by_lacking.items():
        shares = even_ranges(0, sum(piece.size for piece in pieces_lacking), len(devices))
        owned: list[Flow] = []
        elements_before = 0
        for piece in pieces_lacking:
            demands = [
                (device, a, b)
                for device, (low, high) in zip(devices, shares, strict=True)
                if (a := max(low - elements_before, 0) + piece.low)
                < (b := min(high - elements_before, piece.size) + piece.low)
            ]
            elements_before += piece.size
            flows += senders.flows(piece.full, demands)
            owned += [
                Flow(a, b, (device,), tuple(d for d in devices if d != device))
                for device, a, b in demands
            ]
        if len(devices) > 1:
            gathers.append(all_gather_act(component, StepKind.ALL_GATHER, (devices,), (owned,)))
    return (*as_collectives(component, flows), *joined_steps(gathers))
