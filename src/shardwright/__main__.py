"""Entry point of `python -m shardwright` and of the installed command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module


def main() -> None:
    """Run the command line and exit with its code; Ctrl-C gives one line and code 130.

    Ctrl-C has this effect wherever it comes, also during an import.
    """
    # All that imports make lives as long as the process: to look it through again and again is a
    # tenth of a plan's time.
    gc.disable()
    # Most arrays of a search live shortly: the kernel takes longer to clear a huge page for each
    # than to clear small pages (a fifth of the CPU time of a plan of DeepSeek-V3 on 2,048 devices).
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    try:
        code: int = import_module("shardwright.cli.main").run(
            sys.argv[1:], when_loaded=_collect_garbage_seldom
        )
    except KeyboardInterrupt:
        code = import_module("shardwright.cli.terminal.keyboard_interrupt").report_interrupted()
    # The command is done: a Ctrl-C from here on would only spoil the exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # `python -m` ends itself by the signal where that came inside of `exec`, as dataclasses are
    # made, even if it was caught.
    interrupted = code == import_module("shardwright.cli.terminal.keyboard_interrupt").INTERRUPTED
    # After the interpreter's end, libraries of a rank end their threads, and have been
    # seen to abort in it: its work was done.
    if interrupted or {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    # The garbage collector need not look through the existing objects again.
    gc.freeze()
    sys.exit(code)


def _collect_garbage_seldom() -> None:
    """Freeze all existing objects and collect garbage only every 200,000 allocations."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    gc.enable()


if __name__ == "__main__":
    main()
