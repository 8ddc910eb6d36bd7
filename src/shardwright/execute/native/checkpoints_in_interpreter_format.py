"""Checkpoints of PyTorch's engine, in the same format as the interpreter's.

A run of either can resume from a checkpoint of the other.

Every rank writes its own elements, with one writer for elements that several ranks hold, and reads
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from shardwright.execute.checkpoints.checkpoint_tensor_names_and_file_digests import (
    VALUE,
    tensor_name,
)
from shardwright.execute.checkpoints.find_finished_checkpoints import newest_checkpoint
from shardwright.execute.checkpoints.read_checkpoint import (
    SavedCheckpoint,
    SavedSource,
    read_checkpoint,
)
from shardwright.execute.checkpoints.save_and_resume_across_ranks import gather_results, save_files
from shardwright.execute.checkpoints.steps_to_checkpoint_and_checkpoints_to_remove import (
    is_due,
    keep_last,
)
from shardwright.execute.checkpoints.torch_checkpoint_planners import CheckpointPiece
from shardwright.execute.checkpoints.write_checkpoint import write_files
from shardwright.execute.device_state.stored_parameter_parts import Key, Source, whole_shape
from shardwright.execute.native.decoder_stage_as_torch_modules import ModuleLayout
from shardwright.execute.native.private_torch_api import own_intervals
from shardwright.execute.native.rank_stages_optimizer_and_pipeline import NativeEngine
from shardwright.execute.training.device_training_state import PreparedTraining
from shardwright.execute.training.training_loop import StepReport
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""Names of optimizer states: this project's, and PyTorch AdamW's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCheckpoints:
    """Settings and the newest checkpoint of a run on PyTorch's engine.

    Args:
        root: the folder of the checkpoints.
        every: steps between checkpoints; 0 = one at the end, after step `steps`.
        keep: number of newest checkpoints that are kept; 0 = all.
        saved: the checkpoint from which the run resumes; None = a new run.
    """

    known: PreparedTraining
    root: Path
    steps: int
    every: int
    keep: int
    saved: SavedCheckpoint | None

    def source(self, first: Source) -> Source:
        """Source of initial values: the resumed checkpoint's master copies, else `first`."""
        return (
            first
            if self.saved is None
            else SavedSource(saved=self.saved, frozen=first, state="master")
        )

    def restore_optimizer(self, engine: NativeEngine) -> None:
        """Load the optimizer's states and the step number from the checkpoint, if there is one."""
        if self.saved is None:
            return
        engine.steps = self.saved.step
        for key, parameter, piece, layout in _trained_parameters(engine):
            box = tuple(
                (interval,) for interval in layout.model_intervals(own_intervals(parameter))
            )
            read = {
                ours: self.saved.part(key, box, ours) if piece.numel() else piece.new_empty(0)
                for ours in MOMENTS
            }
            states = {
                ours: layout.to_module(values).reshape(piece.shape) for ours, values in read.items()
            }
            engine.optimizer.state[piece] = {
                "step": torch.tensor(float(engine.steps)),
                **{theirs: states[ours].to(piece).contiguous() for ours, theirs in MOMENTS.items()},
            }

    def save_if_due(self, engine: NativeEngine, report: StepReport) -> None:
        """Save a checkpoint after a step if one is due; all ranks must call it.

        Raises:
            DataError: a file could not be written, on any rank.
        """
        if not is_due(report.step, steps=self.steps, every=self.every, stopped=report.stopped):
            return
        rank, model = dist.get_rank(), self.known.work.model
        pieces = list(_checkpoint_pieces(engine, model))
        save_files(
            lambda folder: [write_files(pieces, folder, device=rank)],
            self.known,
            self.root,
            step=engine.steps,
            rank=rank,
        )
        if rank == 0:
            keep_last(self.root, self.keep)


def newest_checkpoint_of(
    training: PreparedTraining, root: Path, *, steps: int, every: int, keep: int
) -> NativeCheckpoints:
    """The newest checkpoint of a folder, from which a run resumes, and settings for new ones.

    All ranks call it, and divide the verification of the files.

    Raises:
        DataError: the newest checkpoint is not usable.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    newest = gather_results(lambda: newest_checkpoint(root) if rank == 0 else None)[0]
    verified: list[SavedCheckpoint] = []
    if newest is not None:
        gather_results(
            lambda: verified.append(
                read_checkpoint(
                    newest,
                    model=training.work.model,
                    settings=training.settings,
                    share=(rank, ranks),
                )
            )
        )
    return NativeCheckpoints(
        known=training,
        root=root,
        steps=steps,
        every=every,
        keep=keep,
        saved=verified[0] if verified else None,
    )


def _trained_parameters(
    engine: NativeEngine,
) -> Iterator[tuple[Key, torch.nn.Parameter, torch.Tensor, ModuleLayout]]:
    """Iterate over (key, parameter, local piece, module layout), each trained parameter once."""
    pieces = {
        id(parameter): piece
        for parameter, piece in zip(engine.parameters, engine.pieces, strict=True)
    }
    for stage in engine.stages:
        for name, key, layout in stage.parameter_keys():
            parameter = stage.get_parameter(name)
            if id(parameter) in pieces:
                yield key, parameter, pieces.pop(id(parameter)), layout


def _checkpoint_pieces(engine: NativeEngine, model: Model) -> Iterator[CheckpointPiece]:
    """Iterate over the values and optimizer states that this rank writes to a checkpoint."""
    for number, (key, parameter, piece, layout) in enumerate(_trained_parameters(engine)):
        shape, states = whole_shape(model, key), engine.optimizer.state[piece]
        tensors = {
            VALUE: piece,
            **{ours: states[theirs] for ours, theirs in MOMENTS.items() if theirs in states},
        }
        if not piece.numel() or not engine.writes(parameter, number):
            continue
        box = layout.model_intervals(own_intervals(parameter))
        for state, tensor in tensors.items():
            values = layout.to_model(tensor, tuple(high - low for low, high in box)).contiguous()
            yield CheckpointPiece(
                name=tensor_name(model, key, state), shape=shape, box=box, values=values
            )
