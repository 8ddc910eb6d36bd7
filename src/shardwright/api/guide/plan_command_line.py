"""The `shardwright plan` command line of a request."""

from __future__ import annotations

import shlex
from typing import Final

from shardwright.search.search_request import HEADROOM, Request
from shardwright.units import GIB

_OPTIONS: Final[tuple[tuple[str, str], ...]] = (
    ("runtime", "--runtime"),
    ("train", "--train"),
    ("teacher", "--teacher"),
    ("gradient_wire", "--gradient-wire"),
    ("profile", "--profile"),
    ("max_devices", "--max-devices"),
    ("encoder_len", "--encoder-len"),
    ("image_tokens", "--image-tokens"),
)
"""(field, option) pairs that are written where the value is not empty or 0."""


def plan_words(request: Request, *, verb: str = "plan") -> list[str]:
    """Words of the command that answers a request; what the devices set by default is left out.

    Args:
        verb: ``plan``, or another verb with the same options.
    """
    words = ["shardwright", verb, request.model, request.cluster]
    words += ["--seq-len", str(request.seq_len), "--global-batch", str(request.global_batch)]
    if request.precision not in ("", "bf16"):
        words += ["--precision", request.precision]
    for field, option in _OPTIONS:
        if value := getattr(request, field):
            words += [option, str(value)]
    if request.dropout:
        words.append("--dropout")
    if request.use_all:
        words.append("--use-all")
    if request.expert_imbalance != 1.0:
        words += ["--expert-imbalance", f"{request.expert_imbalance:.15g}"]
    if request.headroom != HEADROOM:
        words += ["--headroom", f"{100 * request.headroom:.15g}%"]
    if request.reserve_bytes:
        words += ["--memory-reserve", f"{request.reserve_bytes / GIB:.15g}GiB"]
    if request.reserve_fraction:
        words += ["--memory-reserve", f"{100 * request.reserve_fraction:.15g}%"]
    for option, choices in (("--pin", request.pins), ("--exclude", request.excludes)):
        for axis, values in choices:
            words += [option, f"{axis}={','.join(values)}"]
    return words


def plan_command(request: Request) -> str:
    """The command line, quoted for a shell."""
    return shlex.join(plan_words(request))
