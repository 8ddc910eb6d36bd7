"""Refusal of requests whose text the planner would read as a path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardwright.errors import ModelError, UsageError, nearest
from shardwright.files.plan_argument import names_file
from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    is_cluster_file,
    split_scale_factors,
)
from shardwright.model.catalog.load_model_by_name import ENTRIES, is_catalog_name
from shardwright.search.search_request import Request

FILE_NAMES: Final = {
    "model": "model.json",
    "teacher": "teacher.json",
    "cluster": "cluster.yaml",
    "profile": "profile.json",
    "scenarios": "scenarios.yaml",
}
"""Name under which the text of a request's field is kept while its question is answered."""
_SHOWN: Final = 60


def require_no_path(request: Request, *, given: Iterable[str] = ()) -> None:
    """Raise an error if a request names a file not `given`, or a model not in the catalog.

    Args:
        given: fields whose text came with the question; they hold their name of `FILE_NAMES`.

    Raises:
        ModelError: a model is not in the catalog.
        ClusterError: a scale factor of the cluster is wrong.
        UsageError: a cluster is a path or the text of a file, or a profile or scenarios are given.
    """
    given = set(given)
    for field, name in FILE_NAMES.items():
        text: str = getattr(request, field)
        source = split_scale_factors(text)[0] if field == "cluster" else text
        if not source or (field in given and source == name):
            continue
        if field in ("model", "teacher"):
            _require_in_catalog(source, field=field)
        elif field != "cluster" or is_cluster_file(source):
            raise UsageError(
                f"{field} {text[:_SHOWN]!r}: no request names a file",
                hint=f"send the text of the file as files.{field}, and leave {field} empty",
            )


def _require_in_catalog(text: str, *, field: str) -> None:
    """Raise ModelError unless a text is the name of a model of the catalog."""
    if not is_catalog_name(text):
        names = [name for entry in ENTRIES for name in entry.names]
        raise ModelError(
            f"{field} {text[:_SHOWN]!r} is not in the catalog, and no request names a file",
            hint=f"{nearest(text, names)} (or send the text of a config.json as files.{field})",
        )


def require_no_strategy_file(strategy: str) -> None:
    """Raise UsageError if a strategy would be read from a file.

    Raises:
        UsageError: the strategy is a path.
    """
    if names_file(strategy):
        raise UsageError(
            f"strategy {strategy[:_SHOWN]!r}: no request names a file",
            hint='a grid such as "tp8 pp16 dp128 zero1", or the text of a plan in notation',
        )
