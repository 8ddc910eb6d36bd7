"""Whole processes, as a user waits for them."""

from __future__ import annotations

import subprocess
import sys

PLAN = ("plan", "llama-3.1-405b", "h100-sxm:16384", "--seq-len", "8192", "--global-batch", "2048")


class Process:
    """The command line, warm cache."""

    repeat = 7
    number = 1
    timeout = 300

    def setup(self) -> None:
        """Fill the cache of compiled kernels."""
        self.time_plan()

    def time_plan(self) -> None:
        """`shardwright plan` of Llama 3.1 405B on 16,384 H100."""
        subprocess.run([sys.executable, "-m", "shardwright", *PLAN], check=True, capture_output=True)

    def time_help(self) -> None:
        """`shardwright --help`."""
        subprocess.run([sys.executable, "-m", "shardwright", "--help"], check=True, capture_output=True)
