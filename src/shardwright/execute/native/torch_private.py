"""What PyTorch 2.13 keeps private and this backend cannot do without; nothing else of the package touches it.

`_PipelineScheduleRuntime` is the only schedule that runs an order given from outside, and `_load_csv` its only door: the public schedules
each know one order by name. `compute_local_shape_and_global_offset` is the only way to learn which elements a rank has of a parameter that
two mesh dims cut along the same dim (FSDP2 over tensor parallelism), so that each rank can slice its own without a collective.
`_functional_collectives` has the collectives with a backward that `torch.distributed.nn.functional`, the public ones, is deprecated for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_single_autograd, all_to_all_single_autograd, wait_tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def pipeline(stages: Sequence[PipelineStage], *, csv: str, microbatches: int, loss: Loss) -> Any:
    """A runtime that runs `csv` (compute-only) over the stages of this rank; gradients of microbatches are summed, not averaged."""
    runtime = _PipelineScheduleRuntime(list(stages), microbatches, loss_fn=loss, scale_grads=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(csv, encoding="utf-8")
        runtime._load_csv(str(path), format="compute_only")
    return runtime


def own_intervals(held: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Which elements of a parameter this rank has: an interval of each dim, empty ones where it has none."""
    if not isinstance(held, DTensor):
        return tuple((0, size) for size in held.shape)
    shape, offset = compute_local_shape_and_global_offset(held.shape, held.device_mesh, held.placements)
    return tuple((min(start, whole), min(start, whole) + size) for size, start, whole in zip(shape, offset, held.shape, strict=True))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's elements."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def exchanged(rows: torch.Tensor, *, given: Sequence[int], came: Sequence[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Rows of all ranks of a group for this one, by rank; backward they go the other way.

    Args:
        rows: for every rank, in order. given, came: how many are for and from each.
    """
    return wait_tensor(all_to_all_single_autograd(rows.contiguous(), list(came), list(given), group))


def gathered(rows: torch.Tensor, *, group: dist.ProcessGroup) -> torch.Tensor:
    """Rows of all ranks of a group, in order; backward each gets the sum of all ranks' gradients of its own."""
    return wait_tensor(all_gather_single_autograd(rows.contiguous(), 0, group))
