"""Layers with a sliding window over the keys, in the spellings of different families."""

from __future__ import annotations

from shardwright.model.ir.config_fields import MAX_CONTEXT, Fields

FULL = "full_attention"
SLIDING = "sliding_attention"


def windows_of(
    fields: Fields, *, layers: int, uniform: bool = False, usual: int = 0
) -> tuple[int, ...]:
    """Window of each layer in keys, 0 = all keys.

    With ``layer_types`` the window holds where that says so. Without it: `uniform` puts the window
    on all layers (Mistral, Mixtral, Phi-3); else ``layer_types`` must be written when there is a
    window. `usual`: where none is written.
    """
    window = fields.optional_integer("sliding_window", maximum=MAX_CONTEXT) or (
        0 if fields.written("sliding_window") else usual
    )
    kinds = fields.layer_types(layers=layers, allowed=(FULL, SLIDING))
    if kinds:
        if SLIDING in kinds and not window:
            fields.missing("sliding_window")
        return tuple(window if kind == SLIDING else 0 for kind in kinds)
    if window and not uniform:
        fields.missing("layer_types")
    return (window,) * layers


def windows_by_period(fields: Fields, *, layers: int, period: int) -> tuple[int, ...]:
    """Window of each layer, every `period`-th layer seeing all keys; ``layer_types`` has the last
    word where it is written.
    """
    if fields.present("layer_types"):
        return windows_of(fields, layers=layers)
    window = fields.integer("sliding_window", "sliding_window_size", maximum=MAX_CONTEXT)
    return tuple(0 if (i + 1) % period == 0 else window for i in range(layers))


def no_window(fields: Fields) -> None:
    """Sliding windows by ``max_window_layers`` are refused where no published model of a family
    uses them; files write the fields.
    """
    if fields.flag("use_sliding_window", default=False):
        fields.unsupported(
            "use_sliding_window = true in this family",
            hint="set it to false, or plan a model of another family",
        )
    fields.aside("sliding_window", "max_window_layers", "layer_types")
