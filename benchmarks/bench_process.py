"""Whole processes, as a user waits for them: CPU seconds (user and system) of each, and of what a
new environment runs first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory

LARGE = ("plan", "llama-3.1-405b", "h100-sxm:16384", "--seq-len", "8192", "--global-batch", "2048")
SMALL = ("plan", "llama-3.1-8b", "h100-sxm:8", "--seq-len", "8192", "--global-batch", "256")
EXPERTS = ("plan", "deepseek-v3", "h100-sxm:2048", "--seq-len", "4096", "--global-batch", "15360")
SERVING = (
    "serve-simulate",
    "llama-3.1-8b",
    "h100-sxm:1",
    "--isl",
    "512",
    "--osl",
    "64",
    "--concurrency",
    "8",
)
RUNS = 7


def cpu_seconds(words: Sequence[str], **environment: str) -> float:
    """CPU seconds of one process of the command line,
    those of processes that it starts among them.
    """
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "shardwright", *words],
        check=True,
        capture_output=True,
        env=os.environ | environment,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


class Process:
    """Median CPU seconds of a process, files read once before. Form: built where the extension is
    there, else numba's cache."""

    params = ("built", "numba")
    param_names = ("kernels",)
    unit = "CPU seconds"
    timeout = 600

    def _median(self, words: Sequence[str], kernels: str) -> float:
        cpu_seconds(words, SHARDWRIGHT_KERNELS=kernels)
        return sorted(cpu_seconds(words, SHARDWRIGHT_KERNELS=kernels) for _ in range(RUNS))[
            RUNS // 2
        ]

    def track_plan_large(self, kernels: str) -> float:
        """`shardwright plan` of Llama 3.1 405B on 16,384 H100."""
        return self._median(LARGE, kernels)

    def track_plan_small(self, kernels: str) -> float:
        """`shardwright plan` of Llama 3.1 8B on 8 H100."""
        return self._median(SMALL, kernels)

    def track_plan_small_quiet(self, kernels: str) -> float:
        """The same with --quiet."""
        return self._median((*SMALL, "--quiet"), kernels)

    def track_plan_experts(self, kernels: str) -> float:
        """`shardwright plan` of DeepSeek-V3 on 2,048 H100."""
        return self._median(EXPERTS, kernels)

    def track_serve_simulate(self, kernels: str) -> float:
        """`shardwright serve-simulate` of Llama 3.1 8B on one H100."""
        return self._median(SERVING, kernels)

    def track_help(self, kernels: str) -> float:
        """`shardwright --help`."""
        return self._median(("--help",), kernels)


class First:
    """CPU seconds of the first process in an environment that has compiled nothing: no byte code of
    ours, no cache of numba's."""

    params = ("built", "numba")
    param_names = ("kernels",)
    unit = "CPU seconds"
    timeout = 600

    def _first(self, words: Sequence[str], kernels: str) -> float:
        with TemporaryDirectory() as folder:
            fresh = {
                "PYTHONPYCACHEPREFIX": folder,
                "NUMBA_CACHE_DIR": folder,
                "SHARDWRIGHT_KERNELS": kernels,
            }
            return cpu_seconds(words, **fresh)

    def track_plan(self, kernels: str) -> float:
        """The first plan."""
        return self._first((*SMALL, "--quiet"), kernels)

    def track_serve_simulate(self, kernels: str) -> float:
        """The first simulation of serving."""
        return self._first(SERVING, kernels)
