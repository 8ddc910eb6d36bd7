"""Fused linear cross-entropy losses of trainers, by the canonical settings that turn them on.

Such a loss computes the GEMM of the output head and the cross-entropy together, so the logits are
never stored as a whole.
"""

from __future__ import annotations

from typing import Final

from shardwright.frameworks.settings.refuse_unpriced_settings import OFF
from shardwright.runtime.parse_launch_arguments import Arguments

OF_LOSS: Final = "sets linear_loss"
"""Note on a setting that the launch file reader turns into the argument linear-loss."""
UNDERSTOOD: Final = dict.fromkeys(("liger-loss", "liger-in-loss", "cut-loss"), OF_LOSS)
"""Canonical name of a setting -> the note on it. In order: Liger's loss or all of its kernels,
whether Liger's kernels include its loss, and Cut Cross-Entropy."""
_ALL_OF_LIGER: Final = ("use-liger-kernel", "enable-liger-kernel")
"""Settings, as the launch file names them, that turn on all kernels of Liger and not only its
loss."""


def linear_loss_argument(settings: Arguments) -> Arguments:
    """Runtime argument linear-loss of a launch: cut, else liger, else as `settings` has it.

    Empty where they choose no fused loss: the loss then reads the logits that the head wrote. Cut
    Cross-Entropy wins over Liger, and both win over linear-loss in `settings` itself.
    """
    if _is_on(settings, "cut-loss"):
        return {"linear-loss": "cut"}
    if _is_on(settings, "liger-loss") and settings.get("liger-in-loss", "true").lower() not in OFF:
        return {"linear-loss": "liger"}
    return {"linear-loss": settings["linear-loss"]} if "linear-loss" in settings else {}


def liger_notes(written: Arguments) -> tuple[str, ...]:
    """Note that Liger's other kernels are not priced, if a launch turns all on; else empty."""
    if not any(_is_on(written, name) for name in _ALL_OF_LIGER):
        return ()
    return (
        (
            "not counted: Liger's fused norms, rotary embeddings and gates, which take less time"
            " and memory"
        ),
    )


def _is_on(settings: Arguments, name: str) -> bool:
    """True if a setting is given and is not an off value."""
    return settings.get(name, "").strip().lower() not in OFF
