"""Checkpoints of PyTorch's engine in the interpreter's names and format: each goes on from the other's.

Every trained parameter and its moments are made whole on the ranks of their stage, one at a time, and one of those ranks writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardwright.execute.native.decoder import Lying
from shardwright.execute.native.torch_private import own_part
from shardwright.execute.native.train import Engine
from shardwright.execute.shares.parameters import Key, Source, whole_shape
from shardwright.execute.state.checkpoint import VALUE, Saved, SavedSource, read, tensor_name, write_files
from shardwright.execute.state.checkpoint_planners import Piece
from shardwright.execute.state.checkpoint_ranks import save_files, together
from shardwright.execute.state.folders import latest
from shardwright.execute.state.keep import is_due, keep_last
from shardwright.execute.training.train import StepReport, Training
from shardwright.model.ir.graph import Model

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""Names of the optimizer's states: ours, and those of PyTorch's AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCheckpoints:
    """Checkpoints of a run.

    Args:
        root: their folder. every: steps between them; 0 = one at the end, step `steps`. keep: newest that are kept; 0 = all.
        saved: what the run goes on from; None = it begins.
    """

    known: Training
    root: Path
    steps: int
    every: int
    keep: int
    saved: Saved | None

    def source(self, first: Source) -> Source:
        """Values that the run begins with: before they were rounded, where the checkpoint has them so; `first` where it has none."""
        return first if self.saved is None else SavedSource(saved=self.saved, frozen=first, state="master")

    def begun(self, engine: Engine) -> None:
        """Give the optimizer the states of the checkpoint."""
        if self.saved is None:
            return
        engine.steps = self.saved.step
        for key, parameter, piece, turn in _trained(engine):
            states = {ours: _own(turn.to_module(self.saved.whole(key, ours)), parameter) for ours in MOMENTS}
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
        save_files(lambda folder: [write_files(pieces, folder, device=rank)], self.known, self.root, step=engine.steps, rank=rank)
        if rank == 0:
            keep_last(self.root, self.keep)


def kept(known: Training, root: Path, *, steps: int, every: int, keep: int) -> NativeCheckpoints:
    """The checkpoints of a folder, of which the newest is what a run goes on from. All ranks call it, and divide its verification.

    Raises:
        DataError: the newest checkpoint is not usable.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    newest = together(lambda: latest(root) if rank == 0 else None)[0]
    found: list[Saved] = []
    if newest is not None:
        together(lambda: found.append(read(newest, model=known.work.model, settings=known.settings, share=(rank, ranks))))
    return NativeCheckpoints(known=known, root=root, steps=steps, every=every, keep=keep, saved=found[0] if found else None)


def _trained(engine: Engine) -> Iterator[tuple[Key, torch.nn.Parameter, torch.Tensor, Lying]]:
    """(key, parameter, this rank's elements of it, how it lies in its module) of every trained parameter of the rank, each once."""
    pieces = {id(parameter): piece for parameter, piece in zip(engine.parameters, engine.pieces, strict=True)}
    for stage in engine.stages:
        for name, key, turn in stage.keyed():
            parameter = stage.get_parameter(name)
            if id(parameter) in pieces:
                yield key, parameter, pieces.pop(id(parameter)), turn


def _pieces(engine: Engine, model: Model) -> Iterator[Piece]:
    """What this rank writes: every so many of the stage's parameters, where so many ranks have the stage."""
    own, ranks = engine.place_in_stage
    for number, (key, parameter, piece, turn) in enumerate(_trained(engine)):
        shape, states = whole_shape(model, key), engine.optimizer.state[piece]
        tensors = {VALUE: piece, **{ours: states[theirs] for ours, theirs in MOMENTS.items() if theirs in states}}
        for state, local in tensors.items():
            whole = _whole(local, parameter)
            if number % ranks == own:
                values = turn.to_model(whole, shape).contiguous()
                yield Piece(name=tensor_name(model, key, state), shape=shape, box=tuple((0, n) for n in shape), values=values)


def _whole(local: torch.Tensor, like: torch.nn.Parameter) -> torch.Tensor:
    """All elements of what is cut as a parameter is."""
    if not isinstance(like, DTensor):
        return local
    spread = DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())
    whole: torch.Tensor = spread.full_tensor()
    return whole


def _own(whole: torch.Tensor, like: torch.nn.Parameter) -> torch.Tensor:
    """This rank's elements of a whole tensor that is cut as a parameter is."""
    return own_part(whole, like) if isinstance(like, DTensor) else whole
