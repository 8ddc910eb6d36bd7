"""Entry point of the command line: dispatch to a verb, and report errors with an exit code.

Every error becomes one line, a hint and an exit code.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from shardwright import __version__
from shardwright.cli.terminal import keyboard_interrupt, standard_output
from shardwright.cli.verb_table import SUMMARIES, VERBS
from shardwright.errors import ResourceError, ShardwrightError, StrategyError, UsageError

_HEAD: Final = """\
Usage: shardwright VERB [ARGUMENTS] [OPTIONS]

Plans how to distribute the training of a large language model over a cluster,
proves that no other plan in the search space is faster, and predicts its step
time and memory.

  shardwright plan llama-3.1-405b h100-sxm:16384 --seq-len 8192 \\
      --global-batch 2048 -o plan.json

Verbs:
"""
_FOOT: Final = """
`shardwright VERB --help` says more. All verbs take --json, --quiet and --debug.
Exit codes: 1 unexpected error, 2 usage, 3 model, 4 cluster, 5 strategy,
6 infeasible, 7 data, 8 runtime, 9 standard output, 10 memory, 11 time limit,
130 interrupted.
"""


COMPILING: Final = (
    "note: compiling the kernels for this machine, once: this may take half a minute\n"
)


def run(arguments: Sequence[str], *, when_loaded: Callable[[], None] = lambda: None) -> int:
    """Run a command line and return its exit code; every error is reported on standard error.

    Args:
        when_loaded: is called between the import of a verb and its work.
    """
    words = list(arguments)
    try:
        standard_output.prepare()
        code = _dispatch(words, when_loaded)
        standard_output.finish()
        _note_uncached_kernels()
        return code
    except KeyboardInterrupt:
        return keyboard_interrupt.report_interrupted()
    except standard_output.ReaderGone:
        return standard_output.NOBODY_READS
    except (BrokenPipeError, SystemExit):
        # Of what a library writes itself, such as the help of a verb: rich ends the program there.
        standard_output.redirect_to_null()
        return standard_output.NOBODY_READS
    except Exception as error:  # the one place where nothing may escape
        if "--debug" in words:
            traceback.print_exception(error)
        return _report_error(error, as_json="--json" in words)


def _note_uncached_kernels() -> None:
    """Write a note on standard error if compiled kernels could not be stored or are out of date.

    The next run would be as slow; the hint says how to change this.
    """
    compiled = sys.modules.get("shardwright.kernel_compilation")
    if compiled is not None and not compiled.kept:
        sys.stderr.write(
            "note: this run compiled its kernels for itself: no folder to keep them in can be"
            " written\n"
        )
        sys.stderr.write("hint: set NUMBA_CACHE_DIR to a folder that can\n")
    built = sys.modules.get("shardwright.built_kernels")
    if built is not None and "changed" in built.fallbacks.values():
        sys.stderr.write(
            "note: some kernels have changed since they were built, and ran in a slower form\n"
        )
        sys.stderr.write("hint: python -m shardwright.build_kernels\n")


def _report_error(error: Exception, *, as_json: bool) -> int:
    """Report an error on standard error, and as JSON on standard output if asked; its exit code."""
    if isinstance(error, MemoryError):
        error = ResourceError(
            "not enough memory",
            hint="a smaller space (--space standard, --pin), or a machine with more",
        )
    if not isinstance(error, ShardwrightError):
        text = " ".join(f"unexpected {type(error).__name__}: {error}".split())
        error = ShardwrightError(
            text[:400], hint="this is a bug; run again with --debug for the traceback"
        )
    if as_json:
        document = {
            "kind": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "exit_code": error.exit_code,
        }
        rule_fields = (
            {"rule": error.rule, "path": error.path} if isinstance(error, StrategyError) else {}
        )
        standard_output.try_to_write(json.dumps({"error": document | rule_fields}, indent=1) + "\n")
    sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
    return error.exit_code


def _dispatch(words: list[str], when_loaded: Callable[[], None]) -> int:
    """Run the verb that the first word names, or print help or version; returns the exit code."""
    if not words or words[0] in ("--help", "-h", "help"):
        standard_output.write(help_text())
        return 0
    if words[0] == "--version":
        standard_output.write(f"shardwright {__version__}\n")
        return 0
    if any("\ud800" <= letter <= "\udfff" for word in words for letter in word):
        raise UsageError("an argument is no text", hint="arguments are in UTF-8")
    if words[0].startswith("-"):
        raise UsageError(
            f"the first word must be a verb, not {words[0][:40]}",
            hint="shardwright --help lists the verbs",
        )
    verb = VERBS.load(words[0])
    when_loaded()
    with _announcing_compilation(
        has_progress_bar=sys.stderr.isatty() and not {"--json", "--quiet"} & set(words)
    ):
        return verb(words[1:])


@contextmanager
def _announcing_compilation(*, has_progress_bar: bool) -> Iterator[None]:
    """Context: say on standard error that kernels are compiled, unless a progress bar will show.

    Nothing is announced where a progress bar would be `seen`.
    """
    compiled = sys.modules.get("shardwright.kernel_compilation")
    if has_progress_bar or compiled is None:
        yield
        return
    with compiled.when_compiling(lambda: sys.stderr.write(COMPILING)):
        yield


def help_text() -> str:
    """The text of ``shardwright --help``."""
    width = max(map(len, SUMMARIES))
    lines = [f"  {name:<{width}}  {summary}\n" for name, summary in SUMMARIES.items()]
    return _HEAD + "".join(lines) + _FOOT
