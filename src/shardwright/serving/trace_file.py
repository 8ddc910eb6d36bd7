"""Files of requests."""

from pathlib import Path

from shardwright.job.serving import Trace


def read_trace(path: Path) -> Trace:
    raise NotImplementedError
