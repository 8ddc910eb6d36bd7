"""Keys and values of other positions: gathered from all members of a group,
or passed round a ring.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.score_tiles import TileRows
from shardwright.execute.numerics.base.group_calls import exchanged, members
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Indices, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A block of keys and values, or their gradients: (samples, keys, elements), and the keys'
    global positions in the order of rows.
    """

    key: torch.Tensor
    value: torch.Tensor
    positions: Indices

    def of(self, rows: TileRows) -> Keys:
        """Some of them."""
        return Keys(
            key=self.key[:, rows.taken], value=self.value[:, rows.taken], positions=rows.positions
        )

    def plus(self, other: Keys) -> Keys:
        """The sum of two gradients of one block."""
        return Keys(
            key=self.key + other.key, value=self.value + other.value, positions=self.positions
        )


def own_positions(place: OperatorShare) -> Indices:
    """Positions of the device's own keys."""
    if place.key_positions:
        return place.key_positions
    cross = place.operator.attention is not None and place.operator.attention.cross
    return place.memory_positions if cross else place.positions


def _positions(place: OperatorShare, device: int) -> Indices:
    return own_positions(place) if device == place.device else place.ring_positions[device]


def passed(place: OperatorShare, keys: Keys, step: int, *, what: str) -> Task[Keys]:
    """What the device before holds, given what this one holds to the device behind; blocks have
    travelled `step` hops then.
    """
    group = members(place, "ring")
    index = group.index(place.device)
    behind, before = group[(index + 1) % len(group)], group[index - 1]
    owner = group[(index - step) % len(group)]
    positions = _positions(place, owner)
    sent = torch.cat([keys.key, keys.value], dim=-1)
    receives = {before: (sent.shape[0], count(positions), sent.shape[2])}
    came = yield from exchanged(
        place,
        group,
        {behind: sent},
        receives,
        what=f"{what} {step}",
        kind="send",
        elements=sent.numel(),
    )
    key, value = came[before].split([keys.key.shape[-1], keys.value.shape[-1]], dim=-1)
    return Keys(key=key, value=value, positions=positions)


def gathered(place: OperatorShare, keys: Keys, *, what: str) -> Task[Keys]:
    """Keys of all members of ``gather``, in the order of the members; the device's own where there
    is no such group.
    """
    group = members(place, "gather")
    if not group:
        return keys
    sent = torch.cat([keys.key, keys.value], dim=-1)
    others = {d: _positions(place, d) for d in group if d != place.device}
    receives = {
        d: (sent.shape[0], count(positions), sent.shape[2]) for d, positions in others.items()
    }
    total = sent.numel() + sum(a * b * c for a, b, c in receives.values())
    came = yield from exchanged(
        place,
        group,
        dict.fromkeys(others, sent),
        receives,
        what=what,
        kind="all_gather",
        elements=total,
    )
    key, value = torch.cat([sent if d == place.device else came[d] for d in group], dim=1).split(
        [keys.key.shape[-1], keys.value.shape[-1]], dim=-1
    )
    positions = tuple(run for d in group for run in _positions(place, d))
    return Keys(key=key, value=value, positions=positions)


def sent_back(
    place: OperatorShare, grads: Keys, own_count: int
) -> Task[tuple[torch.Tensor, torch.Tensor]]:
    """The gradients of the device's own keys and values, summed over the members of ``gather``.

    Args:
        grads: of the gathered keys.
        own_count: how many of them are the device's own.
    """
    group = members(place, "gather")
    if not group:
        return grads.key, grads.value
    lengths = [count(_positions(place, d)) if d != place.device else own_count for d in group]
    pieces = dict(
        zip(group, torch.cat([grads.key, grads.value], dim=-1).split(lengths, dim=1), strict=True)
    )
    own = pieces.pop(place.device)
    total = own[:, :1].numel() * sum(lengths)
    came = yield from exchanged(
        place,
        group,
        pieces,
        dict.fromkeys(pieces, tuple(own.shape)),
        what="key gradients",
        kind="reduce_scatter",
        elements=total,
    )
    for device in sorted(came):
        own = own + came[device]
    dk, dv = own.split([grads.key.shape[-1], grads.value.shape[-1]], dim=-1)
    return dk, dv
