"""Conversion of a checkpoint to Hugging Face weights of its family's class."""

from __future__ import annotations

from pathlib import Path

import torch

from shardwright.errors import DataError
from shardwright.execute.checkpoints.checkpoint_tensor_names_and_file_digests import tensor_name
from shardwright.execute.checkpoints.read_checkpoint import SavedSource, has_block, read_checkpoint
from shardwright.execute.device_state.stored_parameter_parts import Key, parameter_of
from shardwright.execute.weights.parameter_slices_of_stored_tensors import stored_parameters
from shardwright.execute.weights.read_numerical_settings_from_config import stored_settings
from shardwright.execute.weights.read_weights import FLOATS, open_weights
from shardwright.execute.weights.write_weights import DTYPE_NAMES, save_weights
from shardwright.model.blocks.multi_token_prediction import MODULE, without_predictors
from shardwright.model.ir.model_graph import Model

MASTER = "master"


def write_checkpoint_weights(
    checkpoint: Path, *, model: Model, config: Path, folder: Path, dtype: str, base: Path | None
) -> tuple[tuple[Path, ...], int, str]:
    """Write a checkpoint's parameters as Hugging Face weights: (files, step, dtype name).

    The folder must be new; the dtype name is that of safetensors.

    Args:
        model: the model of a configuration; the checkpoint's model may lack prediction modules.
        dtype: a key of `FLOATS`; empty = the format of the checkpoint's parameters.
        base: folder of weights for untrained parameters.

    Raises:
        DataError: as `read_checkpoint`, `open_weights` and `save_weights`; parameters were not
            trained and there is no `base`.
    """
    model = model if has_block(checkpoint, MODULE) else without_predictors(model)
    saved = read_checkpoint(
        checkpoint,
        model=model,
        settings=stored_settings(base, model=model, strict=False) if base is not None else None,
    )
    missing = next((key for key, _ in stored_parameters(model) if key not in saved.shapes), None)
    if missing is not None and base is None:
        raise DataError(
            f"{checkpoint}: {tensor_name(model, missing)} was not trained, and is not in it",
            hint="--weights with the folder that the run began with",
        )
    trained = next(key for key in saved.shapes if parameter_of(model, key).trainable)
    stored_dtype = saved.metadata.state_dict_metadata[tensor_name(model, trained)].properties.dtype
    written_dtype = FLOATS[dtype] if dtype else stored_dtype
    frozen = (
        open_weights(base, model=model, dtype=torch.float64) if base is not None else _no_source
    )
    source = SavedSource(saved=saved, frozen=frozen, state=MASTER)
    files = save_weights(source, model=model, config=config, folder=folder, dtype=written_dtype)
    return files, saved.step, DTYPE_NAMES[written_dtype]


def _no_source(key: Key) -> torch.Tensor:
    """Raise AssertionError: a parameter source for checkpoints that have every parameter."""
    raise AssertionError(key)
