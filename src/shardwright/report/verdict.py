"""Whether a strategy fits into its devices' memory, in a line."""

from __future__ import annotations

from rich.text import Text

from shardwright.simulator.prediction import Prediction
from shardwright.units import format_bytes, format_percent

TIGHT = 0.95
"""Share of a device's memory beyond which a prediction, a few percent off, is no promise."""


def verdict(prediction: Prediction, *, classes: tuple[str, ...] = (), fitting: tuple[str, ...] = ()) -> Text:
    """That it fits and how full the fullest device is, a warning where it is nearly full; or where it does not, by how much, and what does.

    Args:
        classes: devices of each class as text, of a general plan. fitting: changes that fit.
    """
    room = prediction.capacity_bytes
    share = prediction.reserved_bytes / room
    if prediction.fits:
        fits = Text(f"fits: the fullest device holds {format_percent(share)} of {format_bytes(room)}")
        if prediction.full_bytes:
            saved = format_bytes(prediction.full_bytes - prediction.reserved_bytes)
            fits.append(f", {saved} less than if all parameters were trained")
        if share > TIGHT:
            limit = format_percent(TIGHT, digits=0)
            fits.append(f"; above {limit} it may fail in practice: leave some free with --memory-reserve", style="yellow")
        return fits
    worst = max(prediction.stages, key=lambda stage: stage.reserved / (stage.capacity or room))
    where = f"devices {classes[worst.rank]}" if classes else f"stage {worst.rank}"
    over = format_bytes(worst.reserved - (worst.capacity or room))
    hint = f"; fits with {' or '.join(fitting)}" if fitting else ""
    return Text.assemble(("DOES NOT FIT", "bold red"), f": {where} by {over}{hint}")
