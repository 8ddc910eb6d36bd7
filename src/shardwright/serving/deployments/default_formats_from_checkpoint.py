"""Number formats of a model's published checkpoint, for requests that name no format."""

from __future__ import annotations

from shardwright.errors import ModelError
from shardwright.job.number_formats_of_published_checkpoints import published_checkpoint
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    NumberFormat,
    OperatorPrecision,
    Precision,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.checkpoint_number_formats import StoredFormat
from shardwright.model.ir.model_graph import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormats:
    """Number formats of a checkpoint, with a note on their source (empty for 16 bits)."""

    precision: Precision
    note: str = ""


def checkpoint_formats(model: Model, *, fp4_units: bool) -> CheckpointFormats:
    """Number formats of a model's checkpoint: its config's, else the published one's, else 16 bits.

    The formats come from the configuration's `quantization_config`, or else from the published
    checkpoint of the catalog's model. Weights in four bits are multiplied in the format that the
    device has units for.

    Args:
        fp4_units: the device multiplies in four bits.

    Raises:
        ModelError: the weights are quantised by a method of which no kernel is priced.
    """
    if model.stored is not None:
        precision = _precision_of(model.stored, model=model, fp4_units=fp4_units)
        return CheckpointFormats(
            precision=precision,
            note=(
                f"weights are served as the checkpoint stores them, in {model.stored.text()};"
                " --precision says another format"
            ),
        )
    published = published_checkpoint(model.name)
    if published is None:
        return CheckpointFormats(precision=Precision())
    same_name = (name for name in published.names if name.endswith(f"/{model.name}"))
    checkpoint = next(same_name, published.names[0])
    return CheckpointFormats(
        precision=published.formats(fp4_units=fp4_units),
        note=(f"weights are served as {checkpoint} stores them; --precision says another format"),
    )


def _precision_of(stored: StoredFormat, *, model: Model, fp4_units: bool) -> Precision:
    """Number formats by operator class of a checkpoint's stored format; ModelError if unpriced."""
    if stored.weights not in set(NumberFormat) or stored.activations not in set(NumberFormat):
        raise ModelError(
            f"{model.name}: its weights are stored by {stored.method!r}, of which no kernel is"
            " priced",
            hint="name the format to price instead, such as --precision int4 or --precision bf16",
        )
    weights, inputs = NumberFormat(stored.weights), NumberFormat(stored.activations)
    if weights is NumberFormat.MXFP4 and fp4_units:
        inputs = NumberFormat.FP8
    if inputs is NumberFormat.NVFP4 and not fp4_units:
        inputs = NumberFormat.BF16
    quantised, plain = OperatorPrecision(weights=weights, activations=inputs), OperatorPrecision()

    def precision_if_quantised(is_quantised: bool) -> OperatorPrecision:
        """The checkpoint's quantised format if `is_quantised`, else 16 bits."""
        return quantised if is_quantised else plain

    return Precision(
        attention=precision_if_quantised(stored.attention),
        output=None if stored.output == stored.attention else precision_if_quantised(stored.output),
        mlp=precision_if_quantised(stored.mlp),
        experts=precision_if_quantised(stored.experts),
        head=precision_if_quantised(stored.head),
        kv=NumberFormat(stored.cache) if stored.cache in set(NumberFormat) else NumberFormat.BF16,
    )
