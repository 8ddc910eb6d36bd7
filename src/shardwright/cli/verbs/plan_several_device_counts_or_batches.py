"""``shardwright plan --devices A..B`` and ``--global-batch auto``: several searches in one call.

With the cost of training (``--tokens``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from shardwright.api.searches.device_and_batch_sweeps import (
    plan_batches,
    plan_device_counts,
    powers_between,
    progress_rate,
)
from shardwright.api.training_run_days_and_dollars import with_training_cost
from shardwright.cli.parsing.parse_token_and_sequence_counts import AUTO, read_batch, read_count
from shardwright.cli.parsing.shared_options import AnswerForm
from shardwright.cli.prediction_exit_code_and_quiet_line import simulation_line
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.cli.terminal.additional_sections_and_json_fields_record import ExtraAnswers
from shardwright.errors import UsageError
from shardwright.report.screens.device_and_batch_scaling_screen import (
    batches_document,
    render_batches,
    render_scaling,
    scaling_document,
)
from shardwright.report.screens.strategy_comparison_screen import render_training, training_document
from shardwright.search.scaling_and_batch_results import ScalingTable
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation

_RANGE: Final = re.compile(r"\s*(.+?)\s*(?:\.\.|:)\s*(.+?)\s*")


def read_devices(text: str) -> tuple[int, ...]:
    """Parse --devices: ``"8..512"`` is 8, 16, .., 512; ``"8,24,64"`` is a list.

    Raises:
        UsageError: the text is neither.
    """
    words = text.split(",")
    ends = _RANGE.fullmatch(text)
    if ends:
        low, high = (read_count(word, flag="--devices") for word in ends.groups())
        return powers_between(low, high)
    return tuple(sorted({read_count(word, flag="--devices") for word in words}))


def read_batches(text: str, *, seq_len: int) -> tuple[int, ...]:
    """Parse a range of global batches into sequences a step, doubled from the least.

    ``auto`` is empty; ``auto:256..4096`` counts sequences, ``auto:1M..16M tokens`` tokens.

    Raises:
        UsageError: the text is none of these, or its tokens are no whole number of sequences.
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
    form: AnswerForm,
) -> None:
    """Search the best plan for each number of devices in `devices`, and print the scaling table.

    With `tokens`, the table has days and dollars.
    """
    numbers = read_devices(devices)
    with screen.progress(form, doing=screen.SIMULATING) as report:
        table = plan_device_counts(request, devices=numbers, progress=report)
    simulations = [trial.simulation for trial in table.trials if trial.simulation is not None]
    costs = (
        [with_training_cost(simulation, tokens=tokens, prices=prices) for simulation in simulations]
        if tokens
        else []
    )
    screen.print_answer(
        form,
        document=lambda: scaling_document(table, costs),
        line=lambda: _knee_line(table),
        picture=lambda: render_scaling(table, costs),
    )


def _knee_line(table: ScalingTable) -> str:
    """Line of ``--quiet``: the number of devices at the knee of efficiency, and their best plan."""
    knee = next(trial.simulation for trial in table.trials if trial.devices == table.knee)
    assert knee is not None
    return simulation_line(knee, prefix=f"{table.knee} devices: ")


def batch_and_cost(
    request: Request,
    batch: str,
    *,
    critical: str,
    tokens: float,
    prices: Mapping[str, float],
    form: AnswerForm,
) -> tuple[Request, Callable[[Simulation], ExtraAnswers]]:
    """Search the batch if `batch` is auto..: request, and maker of batch and cost sections.

    Args:
        batch: text of ``--global-batch``.
        critical: text of ``--critical-batch``.
    """
    notes = ExtraAnswers()
    if batch.startswith(AUTO):
        sizes = read_batches(batch, seq_len=request.seq_len)
        critical_tokens = float(read_count(critical, flag="--critical-batch")) if critical else 0.0
        with screen.progress(form, doing=screen.SIMULATING) as report:
            trials = plan_batches(
                request, sizes=sizes, critical=critical_tokens, tokens=tokens, progress=report
            )
        rates = [
            progress_rate(trial, seq_len=trials.seq_len, critical=trials.critical)
            for trial in trials.trials
        ]
        request = replace(request, global_batch=trials.chosen)
        notes = ExtraAnswers(
            sections=(render_batches(trials, rates),),
            document={"batches": batches_document(trials, rates)},
        )
    return request, lambda one: notes + training_cost(one, tokens=tokens, prices=prices)


def training_cost(
    simulation: Simulation, *, tokens: float, prices: Mapping[str, float]
) -> ExtraAnswers:
    """Screen sections of days and dollars of training on `tokens`; empty for 0 tokens."""
    if not tokens:
        return ExtraAnswers()
    row = with_training_cost(simulation, tokens=tokens, prices=prices)
    return ExtraAnswers(
        sections=(render_training(row),), document={"training": training_document(row)}
    )
