"""The package's sources, parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache

from tools.error_index import SOURCE, parsed


@cache
def trees() -> dict[str, ast.Module]:
    """By the name that a module is imported by."""
    return parsed(SOURCE)
