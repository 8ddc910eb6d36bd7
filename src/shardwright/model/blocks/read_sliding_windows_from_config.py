"""Read the sliding attention window of each layer from config.json, by the families' spellings."""

from __future__ import annotations

from shardwright.model.ir.config_json_field_access import MAX_CONTEXT, Fields

FULL = "full_attention"
SLIDING = "sliding_attention"


def windows_of(
    fields: Fields, *, layers: int, on_all_without_types: bool = False, default_window: int = 0
) -> tuple[int, ...]:
    """Window of each layer in keys (0 = all), from ``sliding_window`` and ``layer_types``.

    ``layer_types`` selects the layers with the window. Without it, `on_all_without_types` puts the
    window on all layers (Mistral, Mixtral, Phi-3); otherwise a written window is an error.
    `default_window`: window if none is written.
    """
    window = fields.optional_integer("sliding_window", maximum=MAX_CONTEXT) or (
        0 if fields.written("sliding_window") else default_window
    )
    kinds = fields.layer_types(layers=layers, allowed=(FULL, SLIDING))
    if kinds:
        if SLIDING in kinds and not window:
            fields.missing("sliding_window")
        return tuple(window if kind == SLIDING else 0 for kind in kinds)
    if window and not on_all_without_types:
        fields.missing("layer_types")
    return (window,) * layers


def windows_by_period(fields: Fields, *, layers: int, period: int) -> tuple[int, ...]:
    """Window of each layer in keys; every `period`-th layer sees all (0), unless ``layer_types``.

    A written ``layer_types`` overrides the period.
    """
    if fields.present("layer_types"):
        return windows_of(fields, layers=layers)
    window = fields.integer("sliding_window", "sliding_window_size", maximum=MAX_CONTEXT)
    return tuple(0 if (i + 1) % period == 0 else window for i in range(layers))


def refuse_window(fields: Fields) -> None:
    """Raise ModelError for a family without sliding windows if ``use_sliding_window`` is true.

    Files of the family write the fields, but no published model uses them.
    """
    if fields.flag("use_sliding_window", default=False):
        fields.unsupported(
            "use_sliding_window = true in this family",
            hint="set it to false, or plan a model of another family",
        )
    fields.mark_read("sliding_window", "max_window_layers", "layer_types")
