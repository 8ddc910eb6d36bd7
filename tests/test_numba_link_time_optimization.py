"""How compiled functions are put together: what only they call is optimized within them, and
NamedTuples go by reference."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shardwright.kernel_compilation import NUMBA_RELEASES
from tests.sources import SOURCE

PROGRAM = """
from typing import NamedTuple

import numpy as np
from numba.core.codegen import CPUCodeLibrary

from shardwright.kernel_compilation import allocation_free, by_reference, inner

optimized = []
optimize = CPUCodeLibrary._optimize_final_module
CPUCodeLibrary._optimize_final_module = lambda self:\
 (optimized.append(self.name), optimize(self))[1]


@by_reference
class Held(NamedTuple):
    counts: np.ndarray
    table: np.ndarray
    numbers: np.ndarray


@inner
def square(held, at):
    return held.table[at, 1] * held.table[at, 1]


@inner
def note(held, at):
    held.counts[at] += 1
    return square(held, at) + held.numbers[at]


@allocation_free
def total(held):
    result = 0.0
    for at in range(held.table.shape[0]):
        result += note(held, at)
    return result


@allocation_free
def twice(held):
    return total(held) + total(held) + square(held, 0)


held = Held(np.zeros(5, np.int64), np.arange(10.0).reshape(5, 2), np.arange(5, dtype=np.int64))
answer = twice(held), twice(held)
(part,) = square.overloads.values()
code = part.library._final_module.get_function(part.fndesc.mangled_name)
print((answer, held.counts.tolist(), optimized,\
 len(list(code.arguments)), [total(held), total(held._replace(numbers=held.counts))]))
"""


def printed(text: str, folder: Path) -> Any:
    """What a program prints that compiles everything anew."""
    pytest.importorskip("numba")
    program = folder / "program.py"
    program.write_text(text)
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "kept"),
        "SHARDWRIGHT_KERNELS": "numba",
    }
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


def test_parts_are_optimized_within_what_python_calls(tmp_path: Path) -> None:
    answer, counts, optimized, arguments, again = printed(PROGRAM, tmp_path)
    once = sum((2 * at + 1) ** 2 + at for at in range(5))
    assert answer == (2 * once + 1, 2 * once + 1)
    assert counts == [4] * 5
    assert [name for name in optimized if name != "nrt"] == ["whole"] * 2, (
        "two functions that Python can call, whatever they consist of"
    )
    assert arguments == 4, "the result, the error, the tuple and the number"
    # The second tuple shares an array with the first, and reads what has been counted by then.
    assert again == [once, once - sum(range(5)) + 5 * 6]


UNKNOWN = (
    """
import sys
import tomllib
import numba

numba.__version__ = "0.59.1"
"""
    + PROGRAM.split("(part,)")[0]
    + """
print((answer, held.counts.tolist(),\
 sorted(name for name in sys.modules if name.startswith("shardwright.kernel_compilation"))))
"""
)


def test_another_numba_compiles_as_it_does_by_itself(tmp_path: Path) -> None:
    once = sum((2 * at + 1) ** 2 + at for at in range(5))
    assert printed(UNKNOWN, tmp_path) == (
        (2 * once + 1, 2 * once + 1),
        [4] * 5,
        ["shardwright.kernel_compilation"],
    )


def test_the_release_that_builds_kernels_is_pinned() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert [f"numba=={release}.*" for release in NUMBA_RELEASES] == [
        line for line in project["project"]["optional-dependencies"]["dev"] if "numba" in line
    ]
