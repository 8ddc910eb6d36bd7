"""Exchange of keys and values between devices: all-gather over a group, or ring steps."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.split_queries_and_keys_into_tiles import TileRows
from shardwright.execute.numerics.base.operator_collectives import exchange_tensors, group_members
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Indices, count


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBlock:
    """A block of keys and values, or their gradients, with the keys' global positions.

    Tensors are (samples, keys, elements), in the order of the positions.
    """

    key: torch.Tensor
    value: torch.Tensor
    positions: Indices

    def rows(self, rows: TileRows) -> KeyBlock:
        """Keys and values of the given rows, with their positions."""
        return KeyBlock(
            key=self.key[:, rows.taken], value=self.value[:, rows.taken], positions=rows.positions
        )

    def added_to(self, other: KeyBlock) -> KeyBlock:
        """Sum of two gradients of the same keys and values."""
        return KeyBlock(
            key=self.key + other.key, value=self.value + other.value, positions=self.positions
        )


def local_key_positions(place: OperatorShare) -> Indices:
    """Sequence positions of the keys that this device computes, before any exchange."""
    if place.key_positions:
        return place.key_positions
    cross = place.operator.attention is not None and place.operator.attention.cross
    return place.memory_positions if cross else place.positions


def _positions(place: OperatorShare, device: int) -> Indices:
    """Sequence positions of the keys that a device of the ring or gather group computes."""
    return local_key_positions(place) if device == place.device else place.ring_positions[device]


def ring_step(place: OperatorShare, keys: KeyBlock, step: int, *, purpose: str) -> Task[KeyBlock]:
    """Send keys to the ring's next device; return the previous one's, `step` hops from its owner.

    After the call, blocks have travelled `step` hops.
    """
    group = group_members(place, "ring")
    index = group.index(place.device)
    next_device, previous = group[(index + 1) % len(group)], group[index - 1]
    owner = group[(index - step) % len(group)]
    positions = _positions(place, owner)
    sent = torch.cat([keys.key, keys.value], dim=-1)
    receives = {previous: (sent.shape[0], count(positions), sent.shape[2])}
    received = yield from exchange_tensors(
        place,
        group,
        {next_device: sent},
        receives,
        purpose=f"{purpose} {step}",
        kind="send",
        elements=sent.numel(),
    )
    key, value = received[previous].split([keys.key.shape[-1], keys.value.shape[-1]], dim=-1)
    return KeyBlock(key=key, value=value, positions=positions)


def gather_keys(place: OperatorShare, keys: KeyBlock, *, purpose: str) -> Task[KeyBlock]:
    """All-gather keys and values over group ``gather``, in member order; no group: `keys` itself.

    Keys are in the order of the members.
    """
    group = group_members(place, "gather")
    if not group:
        return keys
    sent = torch.cat([keys.key, keys.value], dim=-1)
    peers = {device: _positions(place, device) for device in group if device != place.device}
    receives = {
        device: (sent.shape[0], count(positions), sent.shape[2])
        for device, positions in peers.items()
    }
    total = sent.numel() + sum(a * b * c for a, b, c in receives.values())
    received = yield from exchange_tensors(
        place,
        group,
        dict.fromkeys(peers, sent),
        receives,
        purpose=purpose,
        kind="all_gather",
        elements=total,
    )
    key, value = torch.cat(
        [sent if device == place.device else received[device] for device in group], dim=1
    ).split([keys.key.shape[-1], keys.value.shape[-1]], dim=-1)
    positions = tuple(stretch for device in group for stretch in _positions(place, device))
    return KeyBlock(key=key, value=value, positions=positions)


def reduce_scatter_key_grads(
    place: OperatorShare, grads: KeyBlock, own_count: int
) -> Task[tuple[torch.Tensor, torch.Tensor]]:
    """(key, value) gradients at the device's own positions, summed over the group ``gather``.

    Args:
        grads: gradients of the gathered keys.
        own_count: number of the device's own keys.
    """
    group = group_members(place, "gather")
    if not group:
        return grads.key, grads.value
    lengths = [count(_positions(place, d)) if d != place.device else own_count for d in group]
    pieces = dict(
        zip(group, torch.cat([grads.key, grads.value], dim=-1).split(lengths, dim=1), strict=True)
    )
    own_grads = pieces.pop(place.device)
    total = own_grads[:, :1].numel() * sum(lengths)
    received = yield from exchange_tensors(
        place,
        group,
        pieces,
        dict.fromkeys(pieces, tuple(own_grads.shape)),
        purpose="key gradients",
        kind="reduce_scatter",
        elements=total,
    )
    for device in sorted(received):
        own_grads = own_grads + received[device]
    dk, dv = own_grads.split([grads.key.shape[-1], grads.value.shape[-1]], dim=-1)
    return dk, dv
