"""What a run is asked, checked before any rank is started. Needs no PyTorch, which takes each rank seconds to load."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.errors import UsageError, nearest
from shardwright.execute.launch.metrics import require_appendable
from shardwright.execute.launch.run_report import BACKENDS, FORMATS, TRANSPORTS, RunOptions
from shardwright.execute.launch.tensorboard import require_tensorboard
from shardwright.execute.state.folders import latest, step_of
from shardwright.execute.training.rate import CURVES
from shardwright.execute.training.spared import SPARED
from shardwright.execute.training.token_files import open_rows
from shardwright.execute.weights.settings import settings_of
from shardwright.program.problem import Problem


def require_runnable(problem: Problem, options: RunOptions) -> None:
    """Raise for what no rank could use: words, files of tokens (but for each token), the configuration of weights, steps left to do.

    Raises:
        UsageError: an unknown word; nothing is left to do. DataError: as `open_rows` and `settings_of`. OutputError: no metrics can be
            written.
    """
    words: list[tuple[str, str, Iterable[str]]] = [
        ("backend", options.backend, BACKENDS),
        ("transport", options.transport, TRANSPORTS),
        ("formats", options.formats, FORMATS),
        ("curve", options.curve, CURVES),
        *(("kind of parameters without decay", word, SPARED) for word in options.no_decay),
    ]
    for what, word, known in words:
        if word not in known:
            raise UsageError(f"unknown {what} {word[:40]!r}", hint=nearest(word, known))
    if options.metrics is not None:
        require_appendable(options.metrics)
    if options.tensorboard is not None:
        require_tensorboard()
    for files in filter(None, (options.data, options.eval_data)):
        open_rows(dict(files), model=problem.model, job=problem.job, share=None)
    if (options.eval_every or options.eval_batches) and not options.eval_data:
        raise UsageError("--eval-every and --eval-batches need data that are not learnt", hint="--eval-data FILE")
    if options.weights is not None:
        settings_of(options.weights, model=problem.model)
    newest = latest(options.checkpoints) if options.checkpoints is not None else None
    if newest is not None and step_of(newest.name) >= options.steps:
        raise UsageError(f"{newest} has all {options.steps} steps", hint="more --steps, or another --checkpoints folder")
