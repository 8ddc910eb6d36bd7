"""The loss of batches that nothing is learnt from, on PyTorch's own engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from shardwright.execute.interpreter.device_walk import Batch
from shardwright.execute.native.engine import Engine
from shardwright.execute.native.torch_private import around_actions, drop_output, forward_only


def evaluate(engine: Engine, batches: Iterable[Batch]) -> float:
    """Mean loss of all batches with the parameters as they are, the same number on every rank. All
    ranks call it.

    Of a pipeline the forward actions of the plan's order run, by a runtime of their own that is
    gone afterwards, and its buffers with it. Parameters that are sharded between steps are gathered
    as in a step, and dropped again.
    """
    runtime = forward_only(engine.pipeline()) if engine.runtime is not None else None
    losses = []
    for batch in batches:
        tokens, labels = engine.given(batch)
        with torch.no_grad(), engine.computing():
            total = (
                _piped(engine, runtime, tokens, labels)
                if runtime is not None
                else _alone(engine, tokens, labels)
            )
        total = total.double() / engine.grid.tp
        dist.all_reduce(total)
        losses.append(float(total))
    for module in (module for stage in engine.stages for module in stage.modules()):
        if isinstance(module, FSDPModule):
            module.reshard()
    return sum(losses) / len(losses)


def _piped(
    engine: Engine, runtime: Any, tokens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """The loss of this replica where the rank has the last chunk, else zero."""
    losses: list[torch.Tensor] = []
    inputs = (tokens,) if engine.first else ()

    @contextmanager
    def forgetting(word: str, chunk: int, microbatch: int) -> Iterator[None]:
        yield
        drop_output(runtime, word, chunk, microbatch)

    around_actions(runtime, forgetting)
    runtime.eval(
        *inputs, target=labels if engine.last else None, losses=losses, return_outputs=False
    )
    return torch.stack(losses).sum() if losses else torch.zeros((), device=engine.device)


def _alone(engine: Engine, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of this replica."""
    (stage,) = engine.stages
    pairs = zip(tokens.chunk(engine.microbatches), labels.chunk(engine.microbatches), strict=True)
    return torch.stack([engine.loss(stage(some), wanted) for some, wanted in pairs]).sum()
