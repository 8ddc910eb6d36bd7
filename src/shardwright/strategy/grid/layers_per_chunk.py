"""Distribution of a model's layers over the chunks of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.strategy.grid.parallelism_grid import Grid


def chunk_layers(
    num_layers: int,
    *,
    pp: int,
    vpp: int = 1,
    first: int = 0,
    last: int = 0,
    layers: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Layers of each of pp x vpp chunks: by `layers`, by `first` and `last`, or as even as can be.

    Chunk c is on pipeline rank c mod pp. The counts sum to `num_layers`.

    The embedding is on chunk 0 and the head on the last one, beside these layers. The first rule
    that applies decides:

    0. `layers` given: these counts, chunk by chunk.
    1. `first` or `last` given: so many layers on the first and last pipeline rank (split evenly
       over its vpp chunks), the rest evenly on the others (Megatron's
       num-layers-in-first/last-pipeline-stage).
    2. layers divide by pp x vpp: equal chunks.
    3. layers + 2 divide by pp x vpp: embedding and head count as a layer each, so the first and
       last chunk have one layer less (Llama 3.1 405B: 126 + 2 = 16 x 8).
    4. several chunks a rank, and layers + 3 divide (embedding, one module that predicts a further
       token, head): equal chunks, the last one with three layers less, but for chunks of two, where
       the first has one and the last none (the layouts of Megatron-Bridge's DeepSeek-V3:
       ``Et*4|(t*4|)*14tmL`` and ``Et|(tt|)*30mL``).
    5. one chunk a rank: layers + 2 as evenly as possible; the remainder goes to the ranks before
       the last, where fewer microbatches are in flight (DeepSeek-V3: 61 + 2 over 16 ranks =
       15 x 4 + 3).

    Args:
        num_layers: layers between embedding and head.
        pp: pipeline ranks.
        vpp: chunks a rank.
        first, last: layers of the first and last rank; 0 = by the other rules.
        layers: layers of every chunk; empty = by the other rules.

    Raises:
        StrategyError: no rule gives a division (rule ``grid.layers``).
    """
    chunks = pp * vpp
    if chunks > num_layers + 2:
        raise StrategyError(
            f"pp {pp} x vpp {vpp} = {chunks} chunks for {num_layers} layers + embedding + head",
            hint="lower pp or vpp",
            rule="grid.layers",
        )
    if layers:
        return _checked_layers(num_layers, chunks=chunks, layers=layers, ends=bool(first or last))
    if first or last:
        return _with_fixed_ends(num_layers, pp=pp, vpp=vpp, first=first, last=last)
    if num_layers % chunks == 0:
        return (num_layers // chunks,) * chunks
    if chunks > 1 and (num_layers + 2) % chunks == 0:
        size = (num_layers + 2) // chunks
        return (size - 1, *(size,) * (chunks - 2), size - 1) if chunks > 1 else (num_layers,)
    if vpp > 1 and (num_layers + 3) % chunks == 0 and num_layers + 3 > chunks:
        size = (num_layers + 3) // chunks
        return (1, *(2,) * (chunks - 2), 0) if size == 2 else (*(size,) * (chunks - 1), size - 3)
    if vpp == 1:
        return _evenly_divided(num_layers, pp=pp)
    raise StrategyError(
        f"neither {num_layers} layers nor {num_layers} + 2 (embedding and head as a layer each)"
        f" divide by pp {pp} x vpp {vpp} = {chunks}",
        hint="give first= and last= (layers of the first and last stage), or another pp x vpp",
        rule="grid.layers",
    )


def largest_chunks(num_layers: int, *, pp: IntArray, vpp: IntArray) -> IntArray:
    """Layers of the largest chunk by `chunk_layers`, for many (pp, vpp) pairs; -1 if undivided.

    The result has shape (pipelines,); -1 where the layers cannot be divided.
    """
    chunks, one_chunk_a_rank = pp * vpp, vpp == 1
    size, remainder = np.divmod(num_layers + 2, chunks)
    with_predictor = (num_layers + 3) // chunks
    # Of the ranks with a layer more, the first has the embedding in its place.
    spread = size + ((remainder < pp - 1) | (remainder > 1))
    ends = size - (chunks == 2)
    largest: IntArray = np.select(
        [
            chunks > num_layers + 2,
            num_layers % chunks == 0,
            remainder == 0,
            ~one_chunk_a_rank & ((num_layers + 3) % chunks == 0) & (num_layers + 3 > chunks),
            one_chunk_a_rank,
        ],
        [
            np.full_like(chunks, -1),
            num_layers // chunks,
            ends,
            np.where((with_predictor == 2) & (chunks == 2), 1, with_predictor),
            spread,
        ],
        default=-1,
    )
    return largest


def teacher_chunks(num_layers: int, *, chunks: int) -> tuple[int, ...]:
    """Divide a distillation teacher's layers over chunks, one a pipeline rank, by `chunk_layers`.

    The teacher's embedding is on the first chunk, its head on the last one. So every stage runs a
    part of both models, and sends both streams on, as ModelOpt's plug-in for Megatron-Core does
    (torch/distill/plugins/megatron.py at 3093b8a57f42: `_forward` joins the outputs of both, and
    `get_tensor_shapes_adjust_fn_for_distillation` is for plain pipelines alone; read).

    Raises:
        StrategyError: there are not so many layers (rule ``grid.layers``).
    """
    return chunk_layers(num_layers, pp=chunks)


def _evenly_divided(num_layers: int, *, pp: int) -> tuple[int, ...]:
    """Layers of each of `pp` ranks, embedding and head as one each; larger ranks before the last.

    Embedding and head count as a layer each. The larger ranks stand before the last.
    """
    size, remainder = divmod(num_layers + 2, pp)
    ranks = [size] * (pp - 1 - remainder) + [size + 1] * remainder + [size]
    ranks[0] -= 1
    ranks[-1] -= 1
    return tuple(ranks)


def _checked_layers(
    num_layers: int, *, chunks: int, layers: tuple[int, ...], ends: bool
) -> tuple[int, ...]:
    """Return `layers` if count, sum and signs are right and `ends` False; else StrategyError.

    Only the first and the last chunk may have 0 layers: the embedding or the head is there.
    """
    if (
        len(layers) != chunks
        or sum(layers) != num_layers
        or min(layers) < 0
        or min(layers[1:-1], default=1) < 1
        or ends
    ):
        raise StrategyError(
            f"layers={','.join(map(str, layers[:20]))}: {len(layers)} chunks with {sum(layers)}"
            f" layers, for {chunks} and {num_layers}",
            hint=(
                "a positive number for each chunk (the first and the last may be 0), pp x vpp of"
                " them, without first= and last="
            ),
            rule="grid.layers",
        )
    return layers


def _with_fixed_ends(
    num_layers: int, *, pp: int, vpp: int, first: int, last: int
) -> tuple[int, ...]:
    """Layers of each chunk with `first` and `last` (0 = free) on the end ranks, the others equal.

    The other ranks get equal numbers, and each rank's layers are split evenly over its chunks.
    """
    other_ranks = pp - (first > 0) - (last > 0)
    other_layers = num_layers - first - last
    if (
        other_ranks < 0
        or other_layers < 0
        or (other_ranks == 0 and other_layers)
        or (other_ranks and other_layers % other_ranks)
    ):
        raise StrategyError(
            f"first={first} last={last}: {other_layers} layers are left for {max(other_ranks, 0)}"
            " other pipeline ranks",
            hint="the rest must divide evenly over the other ranks",
            rule="grid.layers",
        )
    middle_layers = other_layers // other_ranks if other_ranks else 0
    ranks = [middle_layers] * pp
    if first:
        ranks[0] = first
    if last:
        ranks[-1] = last
    if any(layers % vpp for layers in ranks) or not all(ranks):
        raise StrategyError(
            f"first={first} last={last}: ranks hold {ranks[0]}, {middle_layers}, {ranks[-1]}"
            f" layers, not each a positive multiple of vpp {vpp}",
            hint="each rank's layers split evenly over its chunks",
            rule="grid.layers",
        )
    return tuple(layers // vpp for _ in range(vpp) for layers in ranks)


def chunks_of(grid: Grid, *, layers: int) -> tuple[int, ...] | StrategyError:
    """Layers of each pipeline chunk of a grid, or the error that says why there is no division."""
    try:
        return chunk_layers(
            layers, pp=grid.pp, vpp=grid.vpp, first=grid.first, last=grid.last, layers=grid.layers
        )
    except StrategyError as error:
        return error


def largest_chunk(grid: Grid, *, layers: int) -> int:
    """Layers of the grid's largest pipeline chunk; -1 if the layers cannot be divided."""
    chunks = chunks_of(grid, layers=layers)
    return -1 if isinstance(chunks, StrategyError) else max(chunks)


def unlike_stages(grid: Grid, *, layers: int) -> int:
    """Degree to which a grid's stages differ in layers (`unlike_chunks`); 0 if undivided.

    0 also where the layers cannot be divided into chunks.
    """
    chunks = chunks_of(grid, layers=layers)
    return 0 if isinstance(chunks, StrategyError) else unlike_chunks(chunks, ranks=grid.pp)


def unlike_chunks(chunks: Sequence[int], *, ranks: int) -> int:
    """Degree to which stages differ in layers: 0 equal, 1 only the ends, 2 otherwise.

    1 means that only the first or the last stage differs from those between, or that all are equal
    if embedding and head count as a layer each. Chunk c is on rank c mod `ranks`.
    """
    if len(set(chunks)) <= 1:
        return 0
    stages = [set(chunks[rank::ranks]) for rank in range(ranks)]
    even = all(len(stage) == 1 for stage in stages) and len(set.union(*stages[1:-1], set())) <= 1
    counted = (chunks[0] + 1, *chunks[1:-1], chunks[-1] + 1)
    return 1 if even or len(set(counted)) == 1 else 2
