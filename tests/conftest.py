"""Settings of all tests: a slow machine is no failure, and a run on the same code finds the same,
but for proofs (tests/tiers.py)."""

import gc
import os

# Before numpy and torch are loaded, and for ranks: all share the cores, and threads that wait for
# work of this size spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Screens are as wide as a pipe's, whatever terminal the tests run in.
os.environ.pop("COLUMNS", None)

import pytest
from hypothesis import HealthCheck, settings

from tests import tiers, together

settings.register_profile(
    "shardwright", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shardwright")


COLLECT_AFTER = (50_000, 20, 20)
"""Most of what tests make lives long or is freed without a search for cycles, which after every 700
objects takes a tenth of the time."""


def pytest_configure(config: pytest.Config) -> None:
    tiers.choose(config.getoption("markexpr"))
    gc.set_threshold(*COLLECT_AFTER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return together.scheduler(config, log)


def _say_seed(config: pytest.Config) -> None:
    if tiers.in_proof() and (terminal := config.pluginmanager.get_plugin("terminalreporter")):
        terminal.write_line(
            f"proofs of {tiers.VARIABLE}={os.environ[tiers.VARIABLE]}, which repeats them"
        )


def pytest_sessionstart(session: pytest.Session) -> None:
    _say_seed(session.config)
    if workerinput := getattr(session.config, "workerinput", None):
        from tests.warm import compile_share

        compile_share(workerinput["workerid"])


def pytest_terminal_summary(config: pytest.Config) -> None:
    _say_seed(config)


def pytest_collection_finish() -> None:
    """What collection made lives to the end: no search for cycles goes through it again."""
    gc.collect()
    gc.freeze()
