"""Whether a collective hides behind a matrix product beside it."""

from __future__ import annotations

from typing import Final

from shardwright.hardware.catalog.constants import family_of

_PERSISTENT: Final = ("hopper", "blackwell")


def products_yield(accelerator: str) -> bool:
    """A collective on a stream of its own hides behind a matrix product on `accelerator` (a catalog name).

    NCCL's kernels hold some multiprocessors for as long as they run. Up to Ampere a product is many short thread blocks, which move to
    the multiprocessors that are left. From Hopper on it is a persistent kernel: one block a multiprocessor, tiles dealt to the blocks
    beforehand. The blocks that find their multiprocessor taken start when the collective is over and then need the product's whole
    time, so both together take as long as one after the other. Runtimes that cut a product and its collective into pieces, give the
    product fewer multiprocessors or copy without any (userbuffers, asynchronous TP) are not meant here.

    Source: CUTLASS documentation, ``efficient_gemm``: persistent kernels with a static tile scheduler on Hopper (from memory); that
    cuBLAS does the same is assumed.
    """
    return family_of(accelerator) not in _PERSISTENT
