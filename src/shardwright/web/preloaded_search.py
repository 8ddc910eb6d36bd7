"""Everything that a search needs, loaded when this module is imported.

A fork server imports it once, so that processes of searches begin with the modules, compiled
kernels and tables in memory.
"""

from __future__ import annotations

from typing import Final

from shardwright.search.grid.bounds.load_kernels import load_kernels
from shardwright.web.search_process import run_search_process

ANSWER: Final = run_search_process
load_kernels()
