"""Private interfaces of PyTorch 2.13 that this backend needs; no other module of the package uses
them.

`_PipelineScheduleRuntime` is the only schedule that runs an order given from outside, and
`_load_csv` its only door: the public schedules each know one order by name. Only its own state says
when an action begins, what it has begun to receive, and what it keeps of a forward; only FSDP2's
groups of parameters say when a rank waits for a gather or a sum: a trace and an evaluation look
there. `compute_local_shape_and_global_offset` is the only way to learn which elements a rank has of
a parameter that two mesh dims cut along the same dim (FSDP2 over tensor parallelism), so that each
rank can slice its own without a collective. `_functional_collectives` has the collectives with a
backward that `torch.distributed.nn.functional`, the public ones, is deprecated for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    _add_send_recv,
    _add_unshard_reshard,
    _PipelineScheduleRuntime,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.lazy_dataclass import dataclass

# torch 2.13 renamed it; older releases have the old name only.
_ALL_GATHER: Final = (
    getattr(functional, "all_gather_single_autograd", None) or functional.all_gather_tensor_autograd
)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def pipeline(stages: Sequence[PipelineStage], *, csv: str, microbatches: int, loss: Loss) -> Any:
    """A runtime that runs `csv` (compute-only) over the stages of this rank; gradients of
    microbatches are summed, not averaged.
    """
    runtime = _PipelineScheduleRuntime(list(stages), microbatches, loss_fn=loss, scale_grads=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(csv, encoding="utf-8")
        runtime._load_csv(str(path), format="compute_only")
    return runtime


def forward_only(runtime: Any) -> Any:
    """The runtime, which runs the forward actions of its order alone from now on, in that order.

    What a forward waits for is forwards, so it is still an order of all ranks. PyTorch loads no
    table without backwards: its checks see the whole one.
    """
    forwards = {
        rank: [
            one
            for action in row
            if action is not None
            for one in action.sub_actions or (action,)
            if one.computation_type.value == "F"
        ]
        for rank, row in runtime.pipeline_order.items()
    }
    runtime.pipeline_order_with_comms = _add_send_recv(
        {rank: _add_unshard_reshard(row) for rank, row in forwards.items()},
        stage_to_rank=runtime.stage_index_to_group_rank.__getitem__,
        num_stages=runtime._num_stages,
    )
    return runtime


Around = Callable[[str, int, int], AbstractContextManager[None]]
"""What is done around something of a pipeline: PyTorch's word of the action, chunk, microbatch (-1:
none)."""


@dataclass(frozen=True, slots=True)
class _Actions:
    """Actions of a rank, each of which runs inside `around`; the runtime takes them one by one."""

    runtime: Any
    own: Sequence[Any]
    around: Around

    def __iter__(self) -> Iterator[Any]:
        # Once begun, whoever prints the order finds plain actions.
        self.runtime.pipeline_order_with_comms[self.runtime.rank] = self.own
        for action in self.own:
            # The runtime runs the two of a pair one behind the other, too.
            for one in action.sub_actions or (action,):
                with self.around(
                    one.computation_type.value,
                    one.stage_index,
                    -1 if one.microbatch_index is None else one.microbatch_index,
                ):
                    yield one


def around_actions(runtime: Any, around: Around) -> None:
    """The actions of the runtime's next step run inside `around`, messages and what it does about
    shards too.
    """
    row = runtime.pipeline_order_with_comms[runtime.rank]
    runtime.pipeline_order_with_comms[runtime.rank] = _Actions(runtime, row, around)


@dataclass(frozen=True, slots=True)
class _Waits:
    """Works that are waited for inside `around`."""

    works: Sequence[Any]
    around: Callable[[], AbstractContextManager[None]]

    def wait(self) -> None:
        with self.around():
            for work in self.works:
                work.wait()


def around_wait(
    runtime: Any,
    word: str,
    chunk: int,
    microbatch: int,
    around: Callable[[], AbstractContextManager[None]],
) -> None:
    """Run the wait for a RECV_F or RECV_B inside `around`, in the action that needs its tensor."""
    works = runtime.fwd_recv_ops if word == "RECV_F" else runtime.bwd_recv_ops
    works[chunk, microbatch] = [_Waits(works[chunk, microbatch], around)]


def around_shards(
    stage: nn.Module, around: Callable[[Collective], AbstractContextManager[None]]
) -> None:
    """Run FSDP2's waits inside `around`: the start and end of a gather, and sums of gradients.

    Collectives of one rank are none.
    """
    modules = (module for module in stage.modules() if isinstance(module, FSDPModule))
    for group in dict.fromkeys(
        group for module in modules for group in _groups(module._get_fsdp_state())
    ):
        shards, replicas = (
            group._all_gather_process_group.size(),
            group._all_reduce_process_group.size() if group._is_hsdp else 1,
        )
        sums = Collective.REDUCE_SCATTER if shards > 1 else Collective.ALL_REDUCE
        if shards > 1:
            _put_inside(
                group,
                "unshard",
                partial(around, Collective.ALL_GATHER),
                lambda g: not (g._all_gather_result or g.is_unsharded),
            )
            _put_inside(
                group,
                "wait_for_unshard",
                partial(around, Collective.ALL_GATHER),
                lambda g: g._all_gather_result,
            )
        if shards * replicas > 1:
            _put_inside(group, "post_backward", partial(around, sums), lambda g: g.reduce_grads)
            _put_inside(
                group,
                "finalize_backward",
                partial(around, sums),
                lambda g: g._post_reduce_event is not None,
            )


def _groups(state: Any) -> Sequence[Any]:
    """Of a module. PyTorch 2.13 has several; releases before had one or none."""
    many = getattr(state, "_fsdp_param_groups", None)
    return (
        many
        if many is not None
        else [state._fsdp_param_group]
        if state._fsdp_param_group is not None
        else []
    )


def _put_inside(
    group: Any,
    name: str,
    around: Callable[[], AbstractContextManager[None]],
    acts: Callable[[Any], object],
) -> None:
    """A method of a group of parameters runs inside `around` where the group says that it has
    something to do.
    """
    own = getattr(group, name)

    def method(*asked: Any, **more: Any) -> Any:
        with around() if acts(group) else nullcontext():
            return own(*asked, **more)

    setattr(group, name, method)


def is_sharded(runtime: Any, chunk: int) -> bool:
    """True if FSDP2 shards a chunk of the rank."""
    return isinstance(_stage(runtime, chunk).submod, FSDPModule)


def message_size(runtime: Any, word: str, chunk: int) -> int:
    """Bytes of a message between chunks."""
    meta = _stage(runtime, chunk)._stage_meta
    tensors = {
        "SEND_F": meta.outputs,
        "RECV_F": meta.inputs,
        "SEND_B": meta.input_grads,
        "RECV_B": meta.output_grads,
    }[word]
    return sum(
        tensor.shape.numel() * tensor.dtype.itemsize
        for tensor in tensors or ()
        if tensor is not None
    )


def drop_output(runtime: Any, word: str, chunk: int, microbatch: int) -> None:
    """Forget what the last chunk made of a microbatch, which the runtime keeps for a backward."""
    stage = _stage(runtime, chunk)
    if word == "F" and stage.is_last:
        stage.fwd_cache.pop(microbatch)


def _stage(runtime: Any, chunk: int) -> PipelineStage:
    return next(stage for stage in runtime._stages if stage.stage_index == chunk)


def own_intervals(held: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """The elements of a parameter on this rank: an interval of each dim, empty ones where it has
    none.
    """
    if not isinstance(held, DTensor):
        return tuple((0, size) for size in held.shape)
    shape, offset = compute_local_shape_and_global_offset(
        held.shape, held.device_mesh, held.placements
    )
    return tuple(
        (min(start, whole), min(start, whole) + size)
        for size, start, whole in zip(shape, offset, held.shape, strict=True)
    )


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's elements."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def exchanged(
    rows: torch.Tensor, *, given: Sequence[int], came: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Rows of all ranks of a group for this one, by rank; backward they go the other way.

    Args:
        rows: for every rank, in order.
        given, came: how many are for and from each.
    """
    return functional.wait_tensor(
        functional.all_to_all_single_autograd(rows.contiguous(), list(came), list(given), group)
    )


def gathered(rows: torch.Tensor, *, group: dist.ProcessGroup) -> torch.Tensor:
    """Rows of all ranks of a group, in order; backward each gets the sum of all ranks' gradients of
    its own.
    """
    return functional.wait_tensor(_ALL_GATHER(rows.contiguous(), 0, group))
