"""A first run: machine code that no folder can hold is compiled all the same, and long work is seen
before it reports anything."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from shardwright import kernel_compilation as compiled
from shardwright.cli.terminal.output_and_progress import progress
from tests.tiers import cases

READ_ONLY = """
from numba.core import caching

caching.CacheImpl._locator_classes = []
import sys

from shardwright import kernel_compilation as compiled
from shardwright.cli.main import run

@compiled.compiled
def doubled(number):
    return 2 * number

assert not compiled.kept
assert doubled(21) == 42
sys.exit(run(["catalog", "schedules", "--json"]))
"""
"""numba asks each of these classes for a folder that can be written, and has none where package and
home are read-only."""


NUMBA = os.environ | {"SHARDWRIGHT_KERNELS": "numba"}


def test_where_no_folder_can_be_written_kernels_are_compiled_for_the_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY], capture_output=True, text=True, check=False, env=NUMBA
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("{", "["))
    assert "no folder to keep them in can be written" in done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr


FRESH = """
import sys

from shardwright import kernel_compilation as compiled
from shardwright.cli import main
from shardwright.registry import Registry

@compiled.compiled
def doubled(number):
    return 2 * number

def verb(words):
    print([doubled(21), doubled(2.5)])
    return 0

Registry.load = lambda self, name: verb
sys.exit(main.run(["plan", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("form", cases([["--quiet"], ["--json"], []], 1))
def test_a_first_run_says_that_it_compiles_and_a_second_one_does_not(
    form: list[str], tmp_path: Path
) -> None:
    (tmp_path / "fresh.py").write_text(FRESH)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    first, second = (
        subprocess.run(
            [sys.executable, "fresh.py", *form],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    )
    assert (first.stdout, second.stdout) == ("[42, 5.0]\n", "[42, 5.0]\n")
    assert (
        first.stderr
        == "note: compiling the kernels for this machine, once: this may take half a minute\n"
    )
    assert second.stderr == ""


PAGES = """
import atexit, os, sys
from shardwright.__main__ import main
atexit.register(lambda: print(os.environ["NUMPY_MADVISE_HUGEPAGE"], "numpy" in sys.modules))
sys.argv = ["shardwright", "--version"]
main()
"""


@pytest.mark.parametrize(("given", "kept"), [({}, "0"), ({"NUMPY_MADVISE_HUGEPAGE": "1"}, "1")])
def test_arrays_are_in_small_pages_unless_the_environment_says_otherwise(
    given: dict[str, str], kept: str
) -> None:
    """Set before numpy is imported, which reads it once."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMPY_MADVISE_HUGEPAGE"}
    done = subprocess.run(
        [sys.executable, "-c", PAGES],
        env=environment | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"{kept} False"


def test_work_that_reports_once_is_shown_when_it_takes_long() -> None:
    file = StringIO()
    with progress(
        doing="compile kernels",
        console=Console(file=file, force_terminal=True, width=80),
    ):
        deadline = time.monotonic() + 60
        while "compile kernels" not in file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "compile kernels" in file.getvalue()


USED = """
import sys
import numba
from shardwright.cli.main import run
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels

def used():
    kernels = {
        id(value): value
        for name, module in list(sys.modules.items())
        if name.startswith("shardwright")
        for value in vars(module).values()
        if isinstance(value, numba.core.dispatcher.Dispatcher)
    }
    doors = [k for k in kernels.values()\
 if k.signatures and not k.targetoptions.get("no_cpython_wrapper")]
    return sorted((k.py_func.__name__, len(k.signatures)) for k in doors), len(kernels)

load_kernels()
loaded, _ = used()
for model, device in [("mixtral-8x7b", "h100-sxm"),\
 *(("llama-3.1-8b", name) for name in ("h100-sxm", "v100-sxm-32gb", "tpu-v5p"))]:
    assert run(["plan", model, f"{device}:16", "--seq-len", "4096",\
 "--global-batch", "64", "--quiet"]) == 0
after, count = used()
print([loaded, after, count])
"""
KERNELS = (
    "_along",
    "_bound_all",
    "_padding",
    "_trilinear",
    "_walk",
    "backward_layer",
    "forward_layer",
    "run_events",
)
FUNCTIONS = 39
"""Compiled functions that a plan imports, those that other kernels call or write out among them."""


def test_a_plan_uses_few_kernels_each_compiled_for_one_signature_before_the_search() -> None:
    pytest.importorskip("numba")
    done = subprocess.run(
        [sys.executable, "-c", USED], capture_output=True, text=True, check=True, env=NUMBA
    )
    loaded, after, count = ast.literal_eval(done.stdout.splitlines()[-1])
    assert after == [(name, 1) for name in KERNELS]
    assert loaded == after, "nothing is compiled while a search is timed"
    assert count <= FUNCTIONS


ANEW = """
from collections import Counter
import numba.core.event
from shardwright.search.grid.bounds import load_kernels as kernels
from shardwright.kernel_compilation import load_numba_runtime as load

class Compiled(numba.core.event.Listener):
    def on_start(self, event):
        started[event.data["dispatcher"].py_func.__module__.split(".")[0],\
 event.data["dispatcher"].py_func.__name__] += 1

    def on_end(self, event):
        pass

started = Counter()
numba.core.event.register("numba:compile", Compiled())
kernels._load_bounds()
kernels.load_clocks()
kernels._load_prices()
print({name: times for (package, name), times in started.items() if package == "shardwright"})
"""


@pytest.mark.proof
def test_kernels_and_what_they_call_are_compiled_once_each(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    environment = NUMBA | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ANEW], capture_output=True, text=True, check=True, env=environment
    )
    times = ast.literal_eval(done.stdout.splitlines()[-1])
    assert set(KERNELS) <= set(times)
    assert set(times.values()) == {1}


HELPED = """
import os, sys
from shardwright import kernel_compilation as compiled

@compiled.compiled
def tripled(number):
    return 3 * number

calls = []
compiled.available_cores = lambda: int(os.environ["CORES"])
compiled._start_silent_process = lambda *named: calls.append(named)\
 or type("Done", (), {"wait": lambda self: calls.append("waited")})()
for number in (1, 1.0, 1.0):
    with compiled.compile_in_other_process("module", "function"):
        assert tripled(number) == 3
print(calls)
"""


@pytest.mark.parametrize(("cores", "calls"), [(2, [("module", "function"), "waited"] * 2), (1, [])])
def test_another_process_helps_where_something_has_to_be_compiled(
    tmp_path: Path, cores: int, calls: list[object]
) -> None:
    pytest.importorskip("numba")
    script = tmp_path / "script.py"
    script.write_text(HELPED)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env=NUMBA | {"CORES": str(cores), "NUMBA_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == calls


def test_what_is_called_elsewhere_leaves_its_machine_code_here(tmp_path: Path) -> None:
    code = (
        "import os, pathlib\ndef leave():"
        " pathlib.Path('left').write_text(os.environ['PYTHONPATH'])\n"
    )
    (tmp_path / "leaving.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.syspath_prepend(str(tmp_path))
        with compiled._start_silent_process("leaving", "leave") as process:
            assert process.wait() == 0
    assert (tmp_path / "left").read_text().startswith(str(tmp_path))
