"""Losses of trainers that take the head's product with them, by the canonical settings that turn
them on.
"""

from __future__ import annotations

from typing import Final

from shardwright.launch_files.refusals import OFF
from shardwright.runtime.arguments import Arguments

OF_LOSS: Final = "sets linear_loss"
"""What a setting says that chooses such a loss."""
UNDERSTOOD: Final = dict.fromkeys(("liger-loss", "liger-in-loss", "cut-loss"), OF_LOSS)
"""Canonical name -> what it says: Liger's kernels, whether its loss is among them, Cut
Cross-Entropy."""
_ALL_OF_LIGER: Final = ("use-liger-kernel", "enable-liger-kernel")
"""Settings that turn on all of Liger's kernels, not its loss alone."""


def linear_loss(said: Arguments) -> Arguments:
    """The loss of canonical settings, as the argument of a runtime that sets it; empty = the loss
    reads the logits that the model made.
    """
    if _is_on(said, "cut-loss"):
        return {"linear-loss": "cut"}
    if _is_on(said, "liger-loss") and said.get("liger-in-loss", "true").lower() not in OFF:
        return {"linear-loss": "liger"}
    return {"linear-loss": said["linear-loss"]} if "linear-loss" in said else {}


def liger_notes(written: Arguments) -> tuple[str, ...]:
    """What of Liger's other kernels is not counted, where a launch turns all of them on."""
    if not any(_is_on(written, name) for name in _ALL_OF_LIGER):
        return ()
    return (
        (
            "not counted: Liger's fused norms, rotary embeddings and gates, which take less time"
            " and memory"
        ),
    )


def _is_on(said: Arguments, name: str) -> bool:
    return said.get(name, "").strip().lower() not in OFF
