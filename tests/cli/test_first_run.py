"""A first run: machine code that no folder can hold is compiled all the same, and long work is seen before it reports anything."""

from __future__ import annotations

import subprocess
import sys
import time
from io import StringIO

from rich.console import Console

from shardwright.cli.screen import progress

READ_ONLY = """
from numba.core import caching

caching.CacheImpl._locator_classes = []
import sys

from shardwright import compiled
from shardwright.cli.main import run

@compiled.compiled
def doubled(number):
    return 2 * number

assert not compiled.kept
assert doubled(21) == 42
sys.exit(run(["catalog", "schedules", "--json"]))
"""
"""numba asks each of these classes for a folder that can be written, and has none where package and home are read-only."""


def test_where_no_folder_can_be_written_kernels_are_compiled_for_the_run() -> None:
    done = subprocess.run([sys.executable, "-c", READ_ONLY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("{", "["))
    assert "no folder to keep them in can be written" in done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr


def test_work_that_reports_once_is_shown_when_it_takes_long() -> None:
    file = StringIO()
    with progress(quiet=False, doing="compile kernels", console=Console(file=file, force_terminal=True, width=80)):
        deadline = time.monotonic() + 60
        while "compile kernels" not in file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "compile kernels" in file.getvalue()
