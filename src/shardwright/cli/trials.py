"""``shardwright plan --devices A..B``, ``--global-batch auto`` and ``--tokens``: several searches
in one call, and what training costs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shardwright.api.training import with_training_cost
from shardwright.api.trials import batches, powers_between, progress_rate, scaling
from shardwright.cli import screen
from shardwright.cli.beside import Beside
from shardwright.cli.counts import read_batch, read_count
from shardwright.cli.plan import AUTO
from shardwright.errors import UsageError
from shardwright.files.text import to_text
from shardwright.report.screens.comparison_screen import render_training, training_document
from shardwright.report.screens.scaling_screen import (
    batches_document,
    render_batches,
    render_scaling,
    scaling_document,
)
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation, strategy_text
from shardwright.search.summary import answer_line, misfit_text

_RANGE: Final = re.compile(r"\s*(.+?)\s*(?:\.\.|:)\s*(.+?)\s*")

NOTHING = Beside()
"""Nothing beside an answer."""


def read_devices(text: str) -> tuple[int, ...]:
    """``"8..512"`` as 8, 16, .., 512; ``"8,24,64"`` as these.

    Raises:
        UsageError: it is neither.
    """
    words = text.split(",")
    ends = _RANGE.fullmatch(text)
    if ends:
        low, high = (read_count(word, flag="--devices") for word in ends.groups())
        return powers_between(low, high)
    return tuple(sorted({read_count(word, flag="--devices") for word in words}))


def read_batches(text: str, *, seq_len: int) -> tuple[int, ...]:
    """Sequences a step of ``auto`` (none), ``auto:256..4096`` or ``auto:1M..16M tokens``, doubled
    from the least.

    Raises:
        UsageError: it is none of these, or tokens that are no whole number of sequences.
    """
    head, _, rest = text.strip().partition(":")
    ends = _RANGE.fullmatch(rest)
    if head != AUTO or (rest and not ends):
        raise UsageError(
            f"--global-batch {text[:40]!r} is no range of batches",
            hint="auto, auto:256..4096 (sequences) or auto:1M..16M tokens",
        )
    if not ends:
        return ()
    unit = " tokens" if rest.rstrip().lower().endswith(("tokens", "tok")) else ""
    words = [
        word if word.rstrip().lower().endswith(("tokens", "tok")) else word + unit
        for word in ends.groups()
    ]
    low, high = (read_batch(word, "", seq_len=seq_len) for word in words)
    return powers_between(low, high)


def show_scaling(
    request: Request,
    devices: str,
    *,
    tokens: float,
    prices: Mapping[str, float],
    as_json: bool,
    quiet: bool,
) -> None:
    """The scaling table of a request; with `tokens`, days and dollars too."""
    numbers = read_devices(devices)
    with screen.progress(quiet=quiet or as_json, doing=screen.SIMULATING) as report:
        found = scaling(request, devices=numbers, progress=report)
    done = [trial.simulation for trial in found.trials if trial.simulation is not None]
    costs = (
        [with_training_cost(one, tokens=tokens, prices=prices) for one in done] if tokens else []
    )
    if as_json:
        screen.write(to_text(scaling_document(found, costs)))
    elif quiet:
        knee = next(trial.simulation for trial in found.trials if trial.devices == found.knee)
        assert knee is not None
        said = f"{found.knee} devices: {strategy_text(knee)}"
        screen.write(
            answer_line(
                said,
                step_time_s=knee.prediction.step_time_s,
                misfit=misfit_text(knee.prediction, classes=knee.classes),
            )
        )
    else:
        screen.show(render_scaling(found, costs))


def choose_batch(
    request: Request, text: str, *, critical: str, tokens: float, quiet: bool
) -> tuple[int, Beside]:
    """The batch that ``--global-batch auto`` comes to, and how that is shown."""
    sizes = read_batches(text, seq_len=request.seq_len)
    stated = float(read_count(critical, flag="--critical-batch")) if critical else 0.0
    with screen.progress(quiet=quiet, doing=screen.SIMULATING) as report:
        found = batches(request, sizes=sizes, critical=stated, tokens=tokens, progress=report)
    rates = [
        progress_rate(trial, seq_len=found.seq_len, critical=found.critical)
        for trial in found.trials
    ]
    return found.chosen, Beside(
        sections=(render_batches(found, rates),),
        document={"batches": batches_document(found, rates)},
    )


def training_cost(simulation: Simulation, *, tokens: float, prices: Mapping[str, float]) -> Beside:
    """Days and dollars of training on `tokens`; nothing where they are 0."""
    if not tokens:
        return Beside()
    row = with_training_cost(simulation, tokens=tokens, prices=prices)
    return Beside(sections=(render_training(row),), document={"training": training_document(row)})
