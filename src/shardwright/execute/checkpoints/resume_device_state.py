"""Create a device's training state from a checkpoint, under any plan of the same model."""

from __future__ import annotations

from shardwright.errors import DataError
from shardwright.execute.checkpoints.checkpoint_tensor_names_and_file_digests import (
    VALUE,
    pieces_of_flat,
    tensor_name,
)
from shardwright.execute.checkpoints.find_finished_checkpoints import MANIFEST
from shardwright.execute.checkpoints.read_checkpoint import SavedCheckpoint, SavedSource
from shardwright.execute.device_state.stored_parameter_parts import (
    Source,
    parameter_of,
)
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    create_device_state,
)


def require_biases_kept(saved: SavedCheckpoint, training: PreparedTraining) -> None:
    """Raise if a checkpoint has updated router biases and the run would drop them.

    Raises:
        DataError: the checkpoint has such biases, and the run has no bias rate.
    """
    frozen = next(
        (key for key in saved.shapes if not parameter_of(saved.model, key).trainable), None
    )
    if frozen is not None and training.bias_rate is None:
        raise DataError(
            f"{saved.folder} has biases of routers that its run moved"
            f" ({tensor_name(saved.model, frozen)})",
            hint="--router-bias-update with that run's rate, or 0 to keep them as they are",
        )


def resume_device(
    device: int, training: PreparedTraining, saved: SavedCheckpoint, *, source: Source
) -> DeviceState:
    """Create a device's state from a checkpoint, under any plan of the same model.

    It reads only the parts that the device holds.

    Args:
        source: source of frozen parameters, which a checkpoint does not have.

    Raises:
        DataError: the checkpoint lacks a parameter, or has biases of routers that the run would
        drop.
    """
    require_biases_kept(saved, training)
    missing = [key for key in training.trained_keys if key not in saved.shapes]
    if missing:
        raise DataError(
            f"{saved.folder / MANIFEST}: {'.'.join(map(str, missing[0]))} is missing",
            hint="resume with the model that was saved",
        )
    resumed = create_device_state(device, training, source=SavedSource(saved=saved, frozen=source))
    for bucket in (b for b in training.buckets if device in b.devices):
        for low, _, states in resumed.shares(bucket):
            for state, tensor in states.tensors.items():
                # A run that kept no master copy updated the parameter itself.
                state_to_read = (
                    VALUE
                    if state == "master" and not saved.has(bucket.boxes[0][0], state)
                    else state
                )
                pieces = pieces_of_flat(training.work.model, bucket, low, tensor, state_to_read)
                saved.fill(
                    [piece for piece in pieces if piece.name in saved.metadata.state_dict_metadata]
                )
    resumed.steps = saved.step
    return resumed
