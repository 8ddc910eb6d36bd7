"""Checkpoints of PyTorch's engine in the interpreter's names and format: each goes on from the
other's.

Every rank writes the elements that it has, those that several have by one of them, and reads its
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from shardwright.execute.checkpoints.checkpoint import (
    VALUE,
    Saved,
    SavedSource,
    read,
    tensor_name,
    write_files,
)
from shardwright.execute.checkpoints.checkpoint_folders import latest
from shardwright.execute.checkpoints.checkpoint_planners import Piece
from shardwright.execute.checkpoints.checkpoint_ranks import save_files, together
from shardwright.execute.checkpoints.kept_checkpoints import is_due, keep_last
from shardwright.execute.device_state.device_parameters import Key, Source, whole_shape
from shardwright.execute.native.decoder_module import Lying
from shardwright.execute.native.engine import Engine
from shardwright.execute.native.torch_private import own_intervals
from shardwright.execute.training.training_loop import StepReport, Training
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""Names of the optimizer's states: ours, and those of PyTorch's AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCheckpoints:
    """Checkpoints of a run.

    Args:
        root: their folder.
        every: steps between them; 0 = one at the end, step `steps`.
        keep: newest that are kept; 0 = all.
        saved: what the run goes on from; None = it begins.
    """

    known: Training
    root: Path
    steps: int
    every: int
    keep: int
    saved: Saved | None

    def source(self, first: Source) -> Source:
        """Values that the run begins with: before they were rounded, where the checkpoint has them
        so; `first` where it has none.
        """
        return (
            first
            if self.saved is None
            else SavedSource(saved=self.saved, frozen=first, state="master")
        )

    def begun(self, engine: Engine) -> None:
        """Give the optimizer the states of the checkpoint."""
        if self.saved is None:
            return
        engine.steps = self.saved.step
        for key, parameter, piece, turn in _trained(engine):
            box = tuple((interval,) for interval in turn.intervals(own_intervals(parameter)))
            read = {
                ours: self.saved.part(key, box, ours) if piece.numel() else piece.new_empty(0)
                for ours in MOMENTS
            }
            states = {
                ours: turn.to_module(values).reshape(piece.shape) for ours, values in read.items()
            }
            engine.optimizer.state[piece] = {
                "step": torch.tensor(float(engine.steps)),
                **{theirs: states[ours].to(piece).contiguous() for ours, theirs in MOMENTS.items()},
            }

    def after(self, engine: Engine, one: StepReport) -> None:
        """Save behind a step, where it is time. All ranks call it.

        Raises:
            DataError: a file could not be written, on any rank.
        """
        if not is_due(one.step, steps=self.steps, every=self.every, stopped=one.stopped):
            return
        rank, model = dist.get_rank(), self.known.work.model
        pieces = list(_pieces(engine, model))
        save_files(
            lambda folder: [write_files(pieces, folder, device=rank)],
            self.known,
            self.root,
            step=engine.steps,
            rank=rank,
        )
        if rank == 0:
            keep_last(self.root, self.keep)


def kept(known: Training, root: Path, *, steps: int, every: int, keep: int) -> NativeCheckpoints:
    """The checkpoints of a folder, of which the newest is what a run goes on from. All ranks call
    it, and divide its verification.

    Raises:
        DataError: the newest checkpoint is not usable.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    newest = together(lambda: latest(root) if rank == 0 else None)[0]
    found: list[Saved] = []
    if newest is not None:
        together(
            lambda: found.append(
                read(newest, model=known.work.model, settings=known.settings, share=(rank, ranks))
            )
        )
    return NativeCheckpoints(
        known=known,
        root=root,
        steps=steps,
        every=every,
        keep=keep,
        saved=found[0] if found else None,
    )


def _trained(engine: Engine) -> Iterator[tuple[Key, torch.nn.Parameter, torch.Tensor, Lying]]:
    """(key, parameter, this rank's elements of it, how it lies in its module) of every trained
    parameter of the rank, each once.
    """
    pieces = {
        id(parameter): piece
        for parameter, piece in zip(engine.parameters, engine.pieces, strict=True)
    }
    for stage in engine.stages:
        for name, key, turn in stage.keyed():
            parameter = stage.get_parameter(name)
            if id(parameter) in pieces:
                yield key, parameter, pieces.pop(id(parameter)), turn


def _pieces(engine: Engine, model: Model) -> Iterator[Piece]:
    """The tensors that this rank writes."""
    for number, (key, parameter, piece, turn) in enumerate(_trained(engine)):
        shape, states = whole_shape(model, key), engine.optimizer.state[piece]
        tensors = {
            VALUE: piece,
            **{ours: states[theirs] for ours, theirs in MOMENTS.items() if theirs in states},
        }
        if not piece.numel() or not engine.writes(parameter, number):
            continue
        box = turn.intervals(own_intervals(parameter))
        for state, own in tensors.items():
            values = turn.to_model(own, tuple(high - low for low, high in box)).contiguous()
            yield Piece(name=tensor_name(model, key, state), shape=shape, box=box, values=values)
