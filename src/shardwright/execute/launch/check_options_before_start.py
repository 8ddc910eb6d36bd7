"""Checks of a run's options before any rank is started.

Needs no PyTorch, whose import takes each rank seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.errors import StrategyError, UsageError, nearest
from shardwright.execute.checkpoints.find_finished_checkpoints import newest_checkpoint, step_of
from shardwright.execute.launch.metrics_file import require_appendable
from shardwright.execute.launch.run_options_and_report import (
    BACKENDS,
    FORMATS,
    NATIVE,
    NOISES,
    OWN,
    TRANSPORTS,
    RunOptions,
)
from shardwright.execute.launch.tensorboard import require_tensorboard
from shardwright.execute.training.learning_rate import CURVES
from shardwright.execute.training.unsupported_router_settings import (
    require_biases,
    require_trainable,
)
from shardwright.execute.training.weight_decay_exemptions import SPARED
from shardwright.execute.training.write_and_open_token_files import open_rows
from shardwright.execute.weights.read_numerical_settings_from_config import stored_settings
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.training_problem import Problem


def run_settings(problem: Problem, options: RunOptions) -> Settings:
    """Settings that a run computes with: the model's or its weights', and the run's router options.

    Raises:
        DataError: as `stored_settings`.
    """
    stored = (
        problem.model.settings
        if options.weights is None
        else stored_settings(options.weights, model=problem.model)
    )
    return options.trained_settings(stored)


def require_runnable(problem: Problem, options: RunOptions) -> None:
    """Raise for options, files or weights that no rank could use, and if no step is left to do.

    Token files are checked except for each token.

    Raises:
        UsageError: an unknown word; nothing is left to do. DataError: as `open_rows` and
            `stored_settings`. OutputError: no metrics can be written. StrategyError: as
            `require_trainable` and `require_biases`.
    """
    words: list[tuple[str, str, Iterable[str]]] = [
        ("backend", options.backend, BACKENDS),
        ("transport", options.transport, TRANSPORTS),
        ("formats", options.formats, FORMATS),
        ("curve", options.curve, CURVES),
        ("router noise", options.router_noise, NOISES),
        *(("kind of parameters without decay", word, SPARED) for word in options.no_decay),
    ]
    for subject, word, allowed in words:
        if word not in allowed:
            raise UsageError(f"unknown {subject} {word[:40]!r}", hint=nearest(word, allowed))
    if options.metrics is not None:
        require_appendable(options.metrics)
    if options.tensorboard is not None:
        require_tensorboard()
    for files in filter(None, (options.data, options.eval_data)):
        open_rows(dict(files), model=problem.model, job=problem.job, share=None)
    if (options.eval_every or options.eval_batches) and not options.eval_data:
        raise UsageError(
            "--eval-every and --eval-batches need data that are not learnt", hint="--eval-data FILE"
        )
    require_trainable(problem.model, run_settings(problem, options))
    require_biases(problem.model, options.router_bias_update)
    if options.router_bias_update is not None and options.backend == NATIVE:
        raise StrategyError(
            f"--router-bias-update {options.router_bias_update:g}: PyTorch's engine does not move"
            " biases of routers",
            hint=f"--backend {OWN}",
            rule="native.bias",
        )
    newest = newest_checkpoint(options.checkpoints) if options.checkpoints is not None else None
    if newest is not None and step_of(newest.name) >= options.steps:
        raise UsageError(
            f"{newest} has all {options.steps} steps",
            hint="more --steps, or another --checkpoints folder",
        )
