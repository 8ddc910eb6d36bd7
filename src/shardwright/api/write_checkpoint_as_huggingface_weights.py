"""Convert a training checkpoint to Hugging Face safetensors."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import DataError, UsageError, nearest
from shardwright.execute.checkpoints.find_finished_checkpoints import MANIFEST, newest_checkpoint
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.families.huggingface_config import load_config

DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "fp64": "F64"}
"""Name of a number format on the command line -> its name in safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenWeights:
    """The written files of tensors, with their checkpoint, step and number format.

    `dtype` is a key of `DTYPES`.
    """

    checkpoint: Path
    step: int
    dtype: str
    files: tuple[Path, ...]


def write_weights(
    checkpoints: Path, *, config: Path, folder: Path, dtype: str = "", base: Path | None = None
) -> WrittenWeights:
    """Write the newest checkpoint of a folder, or one checkpoint, as Hugging Face safetensors.

    Args:
        config: the model's ``config.json``.
        folder: the folder to make.
        dtype: number format of the files; empty = that of the run's compute parameters.
        base: weights that the run began with, for parameters that were not trained.

    Finer values are taken where the run had them: float32 files of a run in bf16 are its master
    copies.

    Raises:
        UsageError: PyTorch is not installed; an unknown dtype. ModelError: the configuration is no
            model's. DataError: there is no whole checkpoint of that model; the family has no table;
            parameters were not trained and no `base` is given; the folder exists.
    """
    if dtype and dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype[:40]!r}", hint=nearest(dtype, DTYPES))
    try:
        from shardwright.execute.weights.checkpoint_to_hugging_face_weights import (
            write_checkpoint_weights,  # PyTorch is an extra
        )
    except ImportError as error:
        raise UsageError("weights needs PyTorch", hint="pip install 'shardwright[run]'") from error
    checkpoint = (
        checkpoints if (checkpoints / MANIFEST).is_file() else newest_checkpoint(checkpoints)
    )
    if checkpoint is None:
        raise DataError(
            f"{checkpoints}: no checkpoint",
            hint="give the folder that `shardwright run --checkpoints` was given",
        )
    model, word = load_config(config), DTYPES.get(dtype, "")
    files, step, word = write_checkpoint_weights(
        checkpoint, model=model, config=config, folder=folder, dtype=word, base=base
    )
    return WrittenWeights(
        checkpoint=checkpoint,
        step=step,
        dtype=next(name for name, format_ in DTYPES.items() if format_ == word),
        files=files,
    )
