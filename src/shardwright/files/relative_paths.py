"""Paths that a question names: in a file they are relative to its folder, so that it is read from
anywhere and moves with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardwright.model.catalog.models_by_name import is_catalog_name
from shardwright.search.search_request import Request

_NAMED: Final = ("model", "teacher")
"""What may be a name of the catalog, which wins over a file of that name."""
_PATHS: Final = (*_NAMED, "cluster", "profile", "scenarios")


def request_relative_to(request: Request, folder: Path) -> Request:
    """The question with its files as they are found from a folder; names, expressions and absolute
    paths stay as they are.
    """

    def moved(text: str) -> str:
        return (
            os.path.relpath(text, folder)
            if not os.path.isabs(text) and _exists(Path(text))
            else text
        )

    return _with_changed_paths(request, moved)


def request_resolved_from(request: Request, folder: Path) -> Request:
    """The question of a file in a folder with its files as they are found from here; what is not
    there stays as it is written.
    """

    def found(text: str) -> str:
        path = folder / text
        return os.path.normpath(path) if _exists(path) else text

    return _with_changed_paths(request, found)


def is_same_model(one: str, other: str) -> bool:
    """Two names of a model: one text, or one file."""
    if one == other:
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _with_changed_paths(request: Request, change: Callable[[str], str]) -> Request:
    written = {name: getattr(request, name) for name in _PATHS}
    paths = {
        name: text
        for name, text in written.items()
        if text and not (name in _NAMED and is_catalog_name(text))
    }
    changed: dict[str, Any] = {name: change(text) for name, text in paths.items()}
    return replace(request, **changed) if changed != paths else request


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
