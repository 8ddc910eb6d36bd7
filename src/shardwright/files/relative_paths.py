"""Relative paths of files in a request: in a plan file they are relative to its folder.

The file is then readable from any folder, and the files move together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardwright.model.catalog.load_model_by_name import is_catalog_name
from shardwright.search.search_request import Request

_NAMED: Final = ("model", "teacher")
"""Fields that may be a name of the catalog, which wins over a file of that name."""
_PATHS: Final = (*_NAMED, "cluster", "profile", "scenarios")


def request_relative_to(request: Request, folder: Path) -> Request:
    """Request with the paths of existing files relative to a folder.

    Names, expressions and absolute paths stay.
    """

    def moved(text: str) -> str:
        return (
            os.path.relpath(text, folder)
            if not os.path.isabs(text) and _exists(Path(text))
            else text
        )

    return _with_changed_paths(request, moved)


def request_resolved_from(request: Request, folder: Path) -> Request:
    """Request of a file in a folder with its paths resolved from the current folder.

    Paths of missing files stay.
    """

    def found(text: str) -> str:
        path = folder / text
        return os.path.normpath(path) if _exists(path) else text

    return _with_changed_paths(request, found)


def is_same_model(one: str, other: str) -> bool:
    """True if two model names are equal or paths of one file."""
    if one == other:
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _with_changed_paths(request: Request, change: Callable[[str], str]) -> Request:
    """Request with `change` applied to each of its paths; catalog names stay."""
    written = {name: getattr(request, name) for name in _PATHS}
    paths = {
        name: text
        for name, text in written.items()
        if text and not (name in _NAMED and is_catalog_name(text))
    }
    changed: dict[str, Any] = {name: change(text) for name, text in paths.items()}
    return replace(request, **changed) if changed != paths else request


def _exists(path: Path) -> bool:
    """True if a path exists; false where the system cannot check it."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
