"""Conversion of a checkpoint's weights to Hugging Face safetensors."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import DataError, UsageError, nearest
from shardwright.execute.state.folders import MANIFEST, latest
from shardwright.lazy_dataclass import dataclass
from shardwright.model.families.huggingface_config import load_config

DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "fp64": "F64"}
"""Words of the command line, and what safetensors calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenWeights:
    """Files of tensors that were written, with their checkpoint, step and dtype (a key of
    `DTYPES`).
    """

    checkpoint: Path
    step: int
    dtype: str
    files: tuple[Path, ...]


def write_weights(
    checkpoints: Path, *, config: Path, folder: Path, dtype: str = "", base: Path | None = None
) -> WrittenWeights:
    """Write the newest checkpoint of a folder, or the one that is named, as Hugging Face
    safetensors.

    Args:
        config: the model's ``config.json``.
        folder: the folder that is created.
        dtype: dtype of the files; empty = that of the parameters in the run.
        base: weights that the run began with, for parameters that it did not train.

    The most precise copy of the run is taken: float32 files of a run in bf16 are its master copies.

    Raises:
        UsageError: PyTorch is not installed; an unknown dtype.
        ModelError: the configuration is no model's.
        DataError: there is no complete checkpoint of that model; the family has no table;
            parameters
            were not trained and no `base` is given; the folder exists.
    """
    if dtype and dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype[:40]!r}", hint=nearest(dtype, DTYPES))
    try:
        from shardwright.execute.weights.saved import written_weights  # PyTorch is an extra
    except ImportError as error:
        raise UsageError("weights needs PyTorch", hint="pip install 'shardwright[run]'") from error
    checkpoint = checkpoints if (checkpoints / MANIFEST).is_file() else latest(checkpoints)
    if checkpoint is None:
        raise DataError(
            f"{checkpoints}: no checkpoint",
            hint="give the folder that `shardwright run --checkpoints` was given",
        )
    model, dtype_code = load_config(config), DTYPES.get(dtype, "")
    files, step, dtype_code = written_weights(
        checkpoint, model=model, config=config, folder=folder, dtype=dtype_code, base=base
    )
    return WrittenWeights(
        checkpoint=checkpoint,
        step=step,
        dtype=next(name for name, code in DTYPES.items() if code == dtype_code),
        files=files,
    )
