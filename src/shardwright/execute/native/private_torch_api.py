"""Private interfaces of PyTorch 2.13 that this engine needs; no other module uses them.

`_PipelineScheduleRuntime` is the only schedule that runs a given order, and `_load_csv` is its only
interface for that: each public schedule has one fixed order. Only the runtime's state tells when an
action begins, which receives have begun, and which forward outputs are kept. Only FSDP2's parameter
groups tell when a rank waits for a gather or a reduction. Traces and evaluations read both.
`compute_local_shape_and_global_offset` is the only way to learn which elements a rank has of a
parameter that two mesh dims cut along the same dim (FSDP2 over tensor parallelism), so that each
rank can slice its own without a collective. `_functional_collectives` has collectives with a
backward pass; it replaces `torch.distributed.nn.functional`, the public ones, which are deprecated.
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

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.lazily_compiled_dataclass import dataclass

# torch 2.13 renamed it; older releases have the old name only.
_ALL_GATHER: Final = (
    getattr(functional, "all_gather_single_autograd", None) or functional.all_gather_tensor_autograd
)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def create_pipeline_runtime(
    stages: Sequence[PipelineStage], *, csv: str, microbatches: int, loss: Loss
) -> Any:
    """Create torch's pipeline runtime for this rank's stages; `csv`: the text of its action table.

    Gradients of microbatches are summed, not averaged.
    """
    runtime = _PipelineScheduleRuntime(list(stages), microbatches, loss_fn=loss, scale_grads=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(csv, encoding="utf-8")
        runtime._load_csv(str(path), format="compute_only")
    return runtime


def keep_forward_actions(runtime: Any) -> Any:
    """Restrict a pipeline runtime to the forward actions of its order, and return it.

    A forward pass waits only for forward passes, so the order of all ranks stays free of deadlocks.
    PyTorch loads no table without backward passes, so its checks see the whole order.
    """
    forwards = {
        rank: [
            forward_action
            for action in row
            if action is not None
            for forward_action in action.sub_actions or (action,)
            if forward_action.computation_type.value == "F"
        ]
        for rank, row in runtime.pipeline_order.items()
    }
    runtime.pipeline_order_with_comms = _add_send_recv(
        {rank: _add_unshard_reshard(row) for rank, row in forwards.items()},
        stage_to_rank=runtime.stage_index_to_group_rank.__getitem__,
        num_stages=runtime._num_stages,
    )
    return runtime


ActionContext = Callable[[str, int, int], AbstractContextManager[None]]
"""Context manager around an action of a pipeline: PyTorch's name of the action, chunk, microbatch
(-1: none)."""


@dataclass(frozen=True, slots=True)
class _WrappedActions:
    """A rank's actions, each of which runs inside the context manager `around`."""

    runtime: Any
    own: Sequence[Any]
    around: ActionContext

    def __iter__(self) -> Iterator[Any]:
        # From now on the runtime's printed order shows plain actions.
        """Yield the actions one by one, each inside its context."""
        self.runtime.pipeline_order_with_comms[self.runtime.rank] = self.own
        for action in self.own:
            # The runtime also runs the two actions of a pair one after the other.
            for sub_action in action.sub_actions or (action,):
                with self.around(
                    sub_action.computation_type.value,
                    sub_action.stage_index,
                    -1 if sub_action.microbatch_index is None else sub_action.microbatch_index,
                ):
                    yield sub_action


def wrap_actions(runtime: Any, around: ActionContext) -> None:
    """Enter context `around(action)` for each action of the runtime's next step, messages too."""
    row = runtime.pipeline_order_with_comms[runtime.rank]
    runtime.pipeline_order_with_comms[runtime.rank] = _WrappedActions(runtime, row, around)


@dataclass(frozen=True, slots=True)
class _HandlesWaitedInContext:
    """Communication handles whose wait runs inside the context manager `around`."""

    works: Sequence[Any]
    around: Callable[[], AbstractContextManager[None]]

    def wait(self) -> None:
        """Enter the context `around`, and wait for all handles while it is open."""
        with self.around():
            for work in self.works:
                work.wait()


def wrap_receive_wait(
    runtime: Any,
    word: str,
    chunk: int,
    microbatch: int,
    around: Callable[[], AbstractContextManager[None]],
) -> None:
    """Enter context `around` during the later wait for a RECV_F's or RECV_B's tensor."""
    works = runtime.fwd_recv_ops if word == "RECV_F" else runtime.bwd_recv_ops
    works[chunk, microbatch] = [_HandlesWaitedInContext(works[chunk, microbatch], around)]


def wrap_shard_waits(
    stage: nn.Module, around: Callable[[Collective], AbstractContextManager[None]]
) -> None:
    """Enter context `around` while FSDP2 begins or ends a gather, or reduces gradients.

    Collectives of one rank are left out.
    """
    modules = (module for module in stage.modules() if isinstance(module, FSDPModule))
    for group in dict.fromkeys(
        group for module in modules for group in _parameter_groups(module._get_fsdp_state())
    ):
        shards, replicas = (
            group._all_gather_process_group.size(),
            group._all_reduce_process_group.size() if group._is_hsdp else 1,
        )
        sums = Collective.REDUCE_SCATTER if shards > 1 else Collective.ALL_REDUCE
        if shards > 1:
            _wrap_method(
                group,
                "unshard",
                partial(around, Collective.ALL_GATHER),
                lambda g: not (g._all_gather_result or g.is_unsharded),
            )
            _wrap_method(
                group,
                "wait_for_unshard",
                partial(around, Collective.ALL_GATHER),
                lambda g: g._all_gather_result,
            )
        if shards * replicas > 1:
            _wrap_method(group, "post_backward", partial(around, sums), lambda g: g.reduce_grads)
            _wrap_method(
                group,
                "finalize_backward",
                partial(around, sums),
                lambda g: g._post_reduce_event is not None,
            )


def _parameter_groups(state: Any) -> Sequence[Any]:
    """FSDP2's parameter groups of a module.

    PyTorch 2.13 has several; earlier releases have one or none.
    """
    many = getattr(state, "_fsdp_param_groups", None)
    return (
        many
        if many is not None
        else [state._fsdp_param_group]
        if state._fsdp_param_group is not None
        else []
    )


def _wrap_method(
    group: Any,
    name: str,
    around: Callable[[], AbstractContextManager[None]],
    acts: Callable[[Any], object],
) -> None:
    """Replace a method of an FSDP2 group: it runs in context `around` if `acts(group)`."""
    original = getattr(group, name)

    def method(*asked: Any, **more: Any) -> Any:
        """Call the original method, in context `around` if it will communicate."""
        with around() if acts(group) else nullcontext():
            return original(*asked, **more)

    setattr(group, name, method)


def is_sharded(runtime: Any, chunk: int) -> bool:
    """True if this rank's pipeline chunk is an FSDP2 module, even with a single shard."""
    return isinstance(_stage(runtime, chunk).submod, FSDPModule)


def message_size(runtime: Any, word: str, chunk: int) -> int:
    """Bytes that a chunk's action `word` moves (SEND_F, RECV_F, SEND_B or RECV_B)."""
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
    """Free the last chunk's output after an action F, as no backward follows; else do nothing."""
    stage = _stage(runtime, chunk)
    if word == "F" and stage.is_last:
        stage.fwd_cache.pop(microbatch)


def _stage(runtime: Any, chunk: int) -> PipelineStage:
    """The pipeline stage of a chunk on this rank."""
    return next(stage for stage in runtime._stages if stage.stage_index == chunk)


def own_intervals(parameter: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """(start, end) of each dim of the parameter's part on this rank, counted in the whole.

    The intervals count in the whole parameter.
    """
    if not isinstance(parameter, DTensor):
        return tuple((0, size) for size in parameter.shape)
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return tuple(
        (min(start, full_size), min(start, full_size) + size)
        for size, start, full_size in zip(shape, offset, parameter.shape, strict=True)
    )


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's elements of a tensor, as a plain tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def all_to_all_rows(
    rows: torch.Tensor,
    *,
    send_counts: Sequence[int],
    receive_counts: Sequence[int],
    group: dist.ProcessGroup,
) -> torch.Tensor:
    """All-to-all of rows with autograd: rows from all ranks of a group, in the order of the ranks.

    Args:
        rows: rows for every rank, in order.
        send_counts, receive_counts: number of rows for and from each rank.
    """
    return functional.wait_tensor(
        functional.all_to_all_single_autograd(
            rows.contiguous(), list(receive_counts), list(send_counts), group
        )
    )


def all_gather_rows(rows: torch.Tensor, *, group: dist.ProcessGroup) -> torch.Tensor:
    """Concatenate the rows (dim 0) of all ranks in rank order; backward reduce-scatters gradients.

    In backward, gradients are summed by rank.
    """
    return functional.wait_tensor(_ALL_GATHER(rows.contiguous(), 0, group))
