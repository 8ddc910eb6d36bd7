"""Texts of the style sheets and scripts that pages embed."""

from __future__ import annotations

from importlib.resources import files


def browser_file(name: str) -> str:
    """Text of a file (script or style sheet) of `report.page.browser`."""
    return files("shardwright.report.page.browser").joinpath(name).read_text(encoding="utf-8")
