"""Number of modules, without packages, that a verb imports: nobody waits for unused ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardwright import kernel_compilation as compiled
from tests.sources import SOURCE

JOB = ("examples/tiny.json", "h100-sxm:4", "--seq-len", "64", "--global-batch", "8")
HEAVY = ("numba", "llvmlite", "scipy", "numpy.ma", "pydantic", "typer", "rich", "torch")
COUNTED = """
import sys
from shardwright.cli.main import run
code = run(sys.argv[2:])
ours = sum(
    name.startswith("shardwright") and not hasattr(module, "__path__")
    for name, module in sys.modules.items()
)
print(code, ours, *(name for name in sys.argv[1].split(",") if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("words", "most", "needs"),
    [
        (("catalog", "schedules", "--json"), 122, ("rich",)),
        (("plan", *JOB, "--quiet"), 367, ()),
        (("plan", *JOB), 407, ("rich",)),
        (("simulate", *JOB, "--strategy", "dp4 mbs1", "--quiet"), 379, ("pydantic", "rich")),
        (
            (
                "serve-simulate",
                "llama-3.1-8b",
                "h100-sxm:1",
                "--isl",
                "64",
                "--osl",
                "4",
                "--concurrency",
                "2",
            ),
            270,
            ("rich",),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and value else None,
)
def test_a_verb_imports_few_modules_and_none_of_the_heavy_ones(
    words: tuple[str, ...], most: int, needs: tuple[str, ...]
) -> None:
    if compiled.form != "built":
        pytest.skip("this installation has no extension")
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, ",".join(HEAVY), *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=SOURCE.parent,
    )
    code, ours, *heavy = done.stdout.splitlines()[-1].split()
    assert code == "0"
    assert int(ours) <= most
    assert set(heavy) <= set(needs)
