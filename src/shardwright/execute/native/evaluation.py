"""Loss of evaluation batches, without training on them, on PyTorch's own engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.native.private_torch_api import (
    drop_output,
    keep_forward_actions,
    wrap_actions,
)
from shardwright.execute.native.rank_stages_optimizer_and_pipeline import NativeEngine


def evaluate(engine: NativeEngine, batches: Iterable[Batch]) -> float:
    """Mean of the batches' mean losses with the current parameters, equal on every rank.

    All ranks must call it.

    In a pipeline, only the forward actions of the plan's order run, in a temporary runtime whose
    buffers are freed afterwards. Parameters that are sharded between steps are gathered as in a
    step, and freed again.
    """
    runtime = keep_forward_actions(engine.pipeline()) if engine.runtime is not None else None
    losses = []
    for batch in batches:
        tokens, labels = engine.local_batch(batch)
        with torch.no_grad(), engine.computing():
            total = (
                _pipeline_loss(engine, runtime, tokens, labels)
                if runtime is not None
                else _loss_without_pipeline(engine, tokens, labels)
            )
        total = total.double() / engine.grid.tp
        dist.all_reduce(total)
        losses.append(float(total))
    for module in (module for stage in engine.stages for module in stage.modules()):
        if isinstance(module, FSDPModule):
            module.reshard()
    return sum(losses) / len(losses)


def _pipeline_loss(
    engine: NativeEngine, runtime: Any, tokens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """This rank's tokens' share of a batch's mean loss, by a pipeline; 0 without the last chunk."""
    losses: list[torch.Tensor] = []
    inputs = (tokens,) if engine.first else ()

    @contextmanager
    def drop_outputs(word: str, chunk: int, microbatch: int) -> Iterator[None]:
        """Context of an action that then frees the last chunk's output: no backward follows."""
        yield
        drop_output(runtime, word, chunk, microbatch)

    wrap_actions(runtime, drop_outputs)
    runtime.eval(
        *inputs, target=labels if engine.last else None, losses=losses, return_outputs=False
    )
    return torch.stack(losses).sum() if losses else torch.zeros((), device=engine.device)


def _loss_without_pipeline(
    engine: NativeEngine, tokens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """This rank's tokens' share of a batch's mean loss, by one forward pass a microbatch."""
    (stage,) = engine.stages
    pairs = zip(tokens.chunk(engine.microbatches), labels.chunk(engine.microbatches), strict=True)
    return torch.stack(
        [
            engine.loss(stage(microbatch_tokens), microbatch_labels)
            for microbatch_tokens, microbatch_labels in pairs
        ]
    ).sum()
