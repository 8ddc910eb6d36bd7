"""Relative paths of files in a request: in a plan file they are relative to its folder.

The file is then readable from any folder, and the files move together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    factors_text,
    split_scale_factors,
)
from shardwright.model.catalog.load_model_by_name import is_catalog_name
from shardwright.search.search_request import Request

_NAMED: Final = ("model", "teacher")
"""Fields that may be a name of the catalog, which wins over a file of that name."""
_PATHS: Final = (*_NAMED, "cluster", "profile", "scenarios")


def request_relative_to(request: Request, folder: Path) -> Request:
    """Copy of a request whose relative paths of existing files start from `folder`.

    Names, expressions and absolute paths stay.
    """

    def path_from_folder(text: str) -> str:
        """Relative path from the folder, of an existing file; else the text unchanged."""
        return (
            os.path.relpath(text, folder)
            if not os.path.isabs(text) and _exists(Path(text))
            else text
        )

    return _with_changed_paths(request, path_from_folder)


def request_resolved_from(request: Request, folder: Path) -> Request:
    """Copy of a request whose paths, written from `folder`, start from the current folder.

    Paths of missing files stay.
    """

    def path_from_here(text: str) -> str:
        """Path of a file beside the stored one, as seen from here; the text if no such file."""
        path = folder / text
        return os.path.normpath(path) if _exists(path) else text

    return _with_changed_paths(request, path_from_here)


def is_same_model(one: str, other: str) -> bool:
    """True if two model names are equal or paths of one file."""
    if one == other:
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _with_changed_paths(request: Request, change: Callable[[str], str]) -> Request:
    """Copy of a request with `change` applied to each field that is a path, no catalog name."""
    written = {name: getattr(request, name) for name in _PATHS}
    paths = {
        name: text
        for name, text in written.items()
        if text and not (name in _NAMED and is_catalog_name(text))
    }
    changed: dict[str, Any] = {
        name: _with_changed_cluster(text, change) if name == "cluster" else change(text)
        for name, text in paths.items()
    }
    return replace(request, **changed) if changed != paths else request


def _with_changed_cluster(text: str, change: Callable[[str], str]) -> str:
    """The text of a cluster with `change` applied to the part before its scale factors."""
    base, factors = split_scale_factors(text)
    return change(base) + factors_text(factors)


def _exists(path: Path) -> bool:
    """True if a path exists; false where the system cannot check it."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
