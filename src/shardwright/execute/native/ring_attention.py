"""Ring attention as an autograd function: keys and values travel around the ranks of a ring."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from shardwright.execute.numerics.attention.attention_by_key_block import (
    attend_to_keys,
    attend_to_keys_backward,
    merge_heads,
    split_heads,
)
from shardwright.execute.numerics.attention.key_value_exchange import KeyBlock
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Indices, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Ranks that pass their keys and values to the next rank.

    Args:
        ranks: the ranks, in order.
        positions_by_rank: positions of the keys of each rank.
    """

    ranks: dist.ProcessGroup
    positions_by_rank: tuple[Indices, ...]

    def key_positions(self, step: int) -> Indices:
        """Positions of the keys that this rank holds once keys were passed on `step` times."""
        return self.positions_by_rank[(self.ranks.rank() - step) % len(self.positions_by_rank)]

    def pass_on(self, tensor: torch.Tensor, *, positions: Indices) -> _Transfer:
        """Begin to send a tensor to the ring's next rank, and to receive one from the previous.

        Both are (samples, positions, ..); `positions`: those of the received tensor.
        """
        rank, size = self.ranks.rank(), len(self.positions_by_rank)
        next_rank, previous_rank = (
            dist.get_global_rank(self.ranks, (rank + hop) % size) for hop in (1, -1)
        )
        outgoing = tensor.contiguous()
        incoming = outgoing.new_empty((outgoing.shape[0], count(positions), *outgoing.shape[2:]))
        operations = [
            dist.P2POp(dist.isend, outgoing, next_rank, self.ranks),
            dist.P2POp(dist.irecv, incoming, previous_rank, self.ranks),
        ]
        return _Transfer(
            works=dist.batch_isend_irecv(operations), outgoing=outgoing, incoming=incoming
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    """A tensor being sent to the next rank, and one being received."""

    works: list[dist.Work]
    outgoing: torch.Tensor
    incoming: torch.Tensor

    def wait(self) -> torch.Tensor:
        """Wait until the tensor is sent and the other one received, and return the latter."""
        for work in self.works:
            work.wait()
        return self.incoming


def attend_over_ring(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, place: OperatorShare, ring: Ring
) -> torch.Tensor:
    """Attention of a rank's queries to all ranks' keys: (samples, positions, heads x value width).

    Each block of keys is attended to when it arrives (`attention_by_key_block`), while the next one
    is on its way. For backward, the rank keeps its own inputs, the output and the logarithms of its
    denominators. Keys travel around again in backward together with their gradients, to which each
    rank adds the part of its queries.

    Args:
        query, key, value: (samples, positions, heads x width).
        place: the rank's share of the operator: its heads and positions.

    Source: Liu et al. 2023 (arXiv 2310.01889).
    """
    output: torch.Tensor = _RingAttention.apply(query, key, value, place, ring)
    return output


class _RingAttention(torch.autograd.Function):  # type: ignore[misc]
    """Autograd function of `attend_over_ring`."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        place: OperatorShare,
        ring: Ring,
    ) -> torch.Tensor:
        """Attention of local queries to each rank's keys, as they come around the ring."""
        keys_and_values, widths, output = (
            torch.cat([key, value], dim=-1),
            (key.shape[-1], value.shape[-1]),
            None,
        )
        for step in range(len(ring.positions_by_rank)):
            transfer = _begin_transfer(ring, keys_and_values, step)
            output = attend_to_keys(
                place, query, _key_block(keys_and_values, widths, ring.key_positions(step)), output
            )
            keys_and_values = transfer.wait() if transfer is not None else keys_and_values
        assert output is not None, "a ring has ranks"
        out = merge_heads(output[0].to(query.dtype))
        ctx.place, ctx.ring = place, ring
        ctx.save_for_backward(query, key, value, out, output[1])
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of queries, keys and values; keys and their gradients go around the ring."""
        query, key, value, out, normal = ctx.saved_tensors
        place, ring = ctx.place, ctx.ring
        keys_and_values, widths = torch.cat([key, value], dim=-1), (key.shape[-1], value.shape[-1])
        output, output_grads = (split_heads(place, out), normal), split_heads(place, grad)
        dq, own_block_grads, grads_transfer = at_least_float32(torch.zeros_like(query)), None, None
        for step in range(len(ring.positions_by_rank)):
            transfer = _begin_transfer(ring, keys_and_values, step)
            query_grad, block_grads = attend_to_keys_backward(
                place,
                query,
                _key_block(keys_and_values, widths, ring.key_positions(step)),
                output,
                output_grads,
            )
            dq, key_value_grads = (
                dq + query_grad,
                torch.cat([block_grads.key, block_grads.value], dim=-1),
            )
            if grads_transfer is not None:
                key_value_grads = key_value_grads + grads_transfer.wait()
            if step:
                grads_transfer = ring.pass_on(
                    key_value_grads, positions=ring.key_positions(step + 1)
                )
            else:
                own_block_grads = key_value_grads
            keys_and_values = transfer.wait() if transfer is not None else keys_and_values
        assert own_block_grads is not None, "a ring has ranks"
        dk, dv = (
            own_block_grads if grads_transfer is None else own_block_grads + grads_transfer.wait()
        ).split(widths, dim=-1)
        return dq.to(query.dtype), dk, dv, None, None


def _begin_transfer(ring: Ring, keys_and_values: torch.Tensor, step: int) -> _Transfer | None:
    """Begin to pass keys and values on to the next rank; None at the ring's last step."""
    return (
        ring.pass_on(keys_and_values, positions=ring.key_positions(step + 1))
        if step + 1 < len(ring.positions_by_rank)
        else None
    )


def _key_block(
    keys_and_values: torch.Tensor, widths: tuple[int, int], positions: Indices
) -> KeyBlock:
    """Split a joined tensor into keys and values of the given `widths`, at `positions`."""
    key, value = keys_and_values.split(widths, dim=-1)
    return KeyBlock(key=key, value=value, positions=positions)
