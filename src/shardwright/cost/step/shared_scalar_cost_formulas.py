"""Scalar cost terms that the bounds and the pricing of a single plan share.

Compiled, so that both use the same code. Terms without a compiled entry point for Python are called
from there as they are written (`compiled.python_form`).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.kernel_compilation import allocation_free, inner

Bytes = FloatArray | IntArray
Number = TypeVar("Number", float, FloatArray)
"""One, or one of each rank where a formula is called as it is written."""


@inner
def beside(compute: float, hidden: float, slowdown: float) -> float:
    """Seconds of compute slowed by `hidden` overlapped communication; at least `hidden`.

    max(compute + (slowdown - 1) min(compute, hidden), hidden): kernels run slower while a
    collective takes some of the device.
    """
    shared = min(compute, hidden)
    return max(compute + (slowdown - 1.0) * shared, hidden)


@allocation_free
def forward_layer(forward: float, gather: float, copy: float, zero: int, slowdown: float) -> float:
    """Seconds of one layer's forward, with ZeRO-3's gather of the next layer beside it.

    Gathered parameters are then copied (`copy`) into their places.
    """
    return beside(forward + copy, gather, slowdown) if zero == 3 else forward


@allocation_free
def backward_layer(
    backward: float,
    gather: float,
    reduce: float,
    apart: float,
    gather_copy: float,
    reduce_copy: float,
    zero: int,
    every_microbatch: bool,
    slowdown: float,
) -> float:
    """Seconds of one layer's backward, with the gathers and reductions that overlap with it.

    With any recompute. ZeRO-3 gathers parameters and, as ZeRO-2, reduces gradients each microbatch,
    each with its copies.

    A gather and a reduction of one group run one after the other, on its one communicator. Of
    `reduce`, `apart` seconds have a communicator, a stream and links of their own, and run beside
    those of other layers: max(gather + reduce - apart, apart).
    """
    hidden = 0.0
    if zero == 3:
        hidden += gather
        backward += gather_copy
    if zero >= 2 and every_microbatch:
        hidden = max(hidden + reduce - apart, apart)
        backward += reduce_copy
    return beside(backward, hidden, slowdown) if hidden > 0.0 else backward


@inner
def gathers_again(elements: float, reuse: float) -> float:
    """Gathers of a recomputed layer in ZeRO-3 backward: 1 + max(0, 1 - reuse / (2 elements)), or 1.

        1 + max(0, 1 - reuse / (2 elements))

    A weight at the part x of a layer is used again 2 (1 - x) `elements` later: first the rest of
    the layer runs forward, then backward. Weights whose next use is more than `reuse` elements away
    (0 = all are kept) are released and gathered again.

    Source: DeepSpeed, `stage3_max_reuse_distance`: partitioned_param_coordinator.py,
    `__params_to_release`.
    """
    return 1.0 + max(0.0, 1.0 - reuse / (2.0 * elements)) if reuse > 0.0 and elements > 0.0 else 1.0


@inner
def parameter_bytes(
    zero: int,
    whole: Number,
    sharded: Number,
    frozen: Number,
    gathered: Number,
    width: float,
    shard_width: float,
    frozen_width: float,
) -> Number:
    """Bytes of parameters on a device: whole + frozen below ZeRO-3, else shards + gathered ones.

    Args:
        whole, sharded, frozen: local trainable elements, a shard of them, elements without gradient
            (from ZeRO-3 on a shard of them).
        gathered: elements that ZeRO-3 holds gathered at once (`gathered_elements`).
        width: bytes an element.
        shard_width: bytes an element of a shard beside the optimizer's own copy: 0 where gathers
            read the fp32 master, which counts as optimizer state.
        frozen_width: bytes an element of a shard without one.
    """
    if zero < 3:
        return (whole + frozen) * width
    return sharded * shard_width + frozen * frozen_width + gathered * width


@inner
def gathered_elements(ends: Number, largest: Number, prefetch: float) -> Number:
    """Elements ZeRO-3 holds gathered at once: `ends` + `largest` layer x (1 + `prefetch`)."""
    return ends + largest * (1.0 + prefetch)


@inner
def temporary_bytes(layer: Number, end: Number, logits: Number) -> Number:
    """Bytes of temporaries beside the logits: max(`end`, `layer` - `logits`).

    It is `end`, an embedding's weight gradient, or the excess over the logits of `layer`, the
    tensors that a layer's backward makes again (the logits are gone when a layer is recomputed).
    """
    largest: Number = np.maximum(end, layer - logits)
    return largest


@inner
def reserved_bytes(
    allocated: Number, temporary: Number, logits: Number, blocks: Number, factor: float
) -> Number:
    """Bytes reserved by a caching allocator: max(allocated x factor, without temporaries + blocks).

    Blocks made for one kind of temporary serve no other, larger one, so their sizes add up.

    Args:
        allocated: peak of the allocated bytes, `temporary` and `logits` included.
        blocks: of logits (`Runtime.logits_blocks_bytes`), of a layer's temporaries and of an
            embedding's gradient.
        factor: least ratio of reserved to allocated.

    Source: torch.cuda memory management notes (blocks are kept for reuse; from memory).
    """
    held: Number = np.maximum(allocated * factor, allocated - temporary - logits + blocks)
    return held


def activation_room(
    most: Bytes, fixed: Bytes, temporary: Bytes, logits: Bytes, blocks: Bytes, factor: float
) -> FloatArray:
    """Most bytes of saved activations for which the allocator reserves at most `most` bytes.

    Beside `fixed` ones, the logits and the `temporary` (`reserved_bytes`).
    """
    brief = logits + temporary
    return np.asarray(
        np.minimum(most / factor, most + brief - blocks) - fixed - brief, dtype=np.float64
    )


@inner
def optimizer_seconds(
    elements: float,
    shard: float,
    bytes_per_element: float,
    bandwidth: float,
    host_share: float,
    host_rate: float,
) -> float:
    """Seconds to update `elements` / `shard` parameters: the slower of the device and host parts.

    Args:
        bytes_per_element: traffic of one element's update.
        bandwidth: achieved bytes/s of the device.
        host_share: share of the states on the host.
        host_rate: elements/s of the host's update and its transfers, for one device.
    """
    owned = elements / shard
    device = owned * (1.0 - host_share) * bytes_per_element / bandwidth
    host = owned * host_share / host_rate if host_share > 0.0 else 0.0
    return max(device, host)
