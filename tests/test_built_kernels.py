"""Kernels in their three forms: as the extension, as numba compiles them, and as they are
written."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import subprocess
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import build_kernels, built_kernels
from shardwright import kernel_compilation as compiled
from shardwright.built_kernels import BuiltKernel, kernel_name, source_digest
from shardwright.simulator.kernel import longest_path
from tests.cli.test_first_run import KERNELS
from tests.sources import SOURCE
from tests.tiers import in_both, in_proof

SIGNATURES = json.loads(
    (SOURCE / "shardwright" / "kernel_signatures.json").read_text(encoding="utf-8")
)
built = pytest.mark.skipif(compiled.form != "built", reason="this installation has no extension")
WORK = (
    np.array([3, 1, 2], np.int64),
    np.array([0, 1, 1], np.int32),
    np.array([0, 2, 2, 2], np.int32),
    np.array([1, 2], np.int32),
)


def kernels() -> set[str]:
    """Functions that Python calls, of all modules."""
    found = set()
    for path in (SOURCE / "shardwright").rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        found |= {
            f"{module}:{name}"
            for name in re.findall(r"^@(?:compiled|allocation_free)\ndef (\w+)", text, re.M)
        }
    return found


def test_the_argument_types_of_every_kernel_are_known() -> None:
    assert kernels() - SIGNATURES.keys() == set(), "python tools/kernel_signatures.py"
    assert SIGNATURES.keys() - kernels() == set(), "these kernels are gone: delete their entries"


def classes(value: Any) -> Iterator[str]:
    """Names of the classes in a list of argument types, as module:class."""
    if isinstance(value, dict):
        if "class" in value:
            yield value["class"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from classes(part)


def test_the_classes_of_argument_types_exist() -> None:
    """A renamed class would leave every installation without built kernels."""
    names = set(classes(list(SIGNATURES.values())))
    assert len(names) > 10
    for name in names:
        module, _, attribute = name.partition(":")
        assert hasattr(import_module(module), attribute), f"{name}: correct kernel_signatures.json"


# ---- three forms, bit for bit --------------------------------------------------------------------

COMMANDS = [
    ["plan", "examples/tiny.json", "h100-sxm:4", "--seq-len", "64", "--global-batch", "8"],
    [
        "simulate",
        "examples/tiny.json",
        "h100-sxm:4",
        "--seq-len",
        "64",
        "--global-batch",
        "8",
        "--strategy",
        "pp2 dp2 mbs1 zero1",
    ],
    [
        "plan",
        "examples/tiny.json",
        "h100-sxm:4",
        "--seq-len",
        "64",
        "--global-batch",
        "8",
        "--space",
        "joint",
        "--time-limit",
        "5",
    ],
    [
        *(
            "plan",
            "examples/tiny.json",
            "h100-sxm:1+v100-sxm-32gb:1",
            "--seq-len",
            "64",
            "--global-batch",
            "2",
        ),
        *("--precision", "fp16", "--space", "exact"),
    ],
    [
        "plan",
        "examples/tiny.json",
        "a100-sxm-80gb:2+v100-sxm-32gb:2",
        "--seq-len",
        "64",
        "--global-batch",
        "8",
        "--precision",
        "fp16",
    ],
    [
        "serve-simulate",
        "llama-3.1-8b",
        "h100-sxm:1",
        "--isl",
        "64",
        "--osl",
        "4",
        "--concurrency",
        "2",
        "--requests",
        "4",
    ],
]
CALLS = 2
"""Calls of each kernel that are made again in the other forms."""
LARGEST = 200_000
"""Elements of all arrays of a call, beyond which Python would take too long."""


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def same_bits(one: Any, other: Any) -> bool:
    """Whether two values are equal to the last bit, whatever shows the same number."""
    mine, theirs = list(leaves(one)), list(leaves(other))
    return len(mine) == len(theirs) and all(
        np.asarray(a).dtype == np.asarray(b).dtype
        and bytes_of(np.asarray(a)) == bytes_of(np.asarray(b))
        for a, b in zip(mine, theirs, strict=True)
    )


def bytes_of(array: Any) -> list[bytes]:
    """Bytes of an array, of one of records by field: what lies between fields is nobody's."""
    return (
        [array[name].tobytes() for name in array.dtype.names]
        if array.dtype.names
        else [array.tobytes()]
    )


@pytest.fixture(scope="module")
def recorded(
    monkeypatch_module: pytest.MonkeyPatch,
) -> dict[str, list[tuple[BuiltKernel, tuple[Any, ...]]]]:
    """Arguments, as they were before, with which the commands call kernels."""
    calls: dict[str, list[tuple[BuiltKernel, tuple[Any, ...]]]] = defaultdict(list)
    call = BuiltKernel.__call__

    def note(self: BuiltKernel, *values: Any, **named: Any) -> Any:
        mine = calls[kernel_name(self)]
        size = sum(np.asarray(one).size for one in leaves(values))
        if not named and size <= LARGEST and len(mine) < CALLS:
            mine.append((self, copy.deepcopy(values)))
        return call(self, *values, **named)

    monkeypatch_module.setattr(BuiltKernel, "__call__", note)
    monkeypatch_module.chdir(SOURCE.parent)
    run = import_module("shardwright.cli.main").run
    for command in COMMANDS:
        assert run([*command, "--json"]) == 0
    monkeypatch_module.undo()
    return calls


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@built
@in_both
def test_three_forms_give_the_same_bits(
    recorded: dict[str, list[tuple[BuiltKernel, tuple[Any, ...]]]],
) -> None:
    """All kernels as they are written. numba takes half a minute to compile them all, which a proof
    does; otherwise those of a plan."""
    assert len(recorded) >= 20, sorted(recorded)
    assert not {name: why for name, why in built_kernels.fallbacks.items() if name in recorded}
    by_numba = {name for name in recorded if in_proof() or name.partition(":")[2] in KERNELS}
    assert len(by_numba) >= len(KERNELS) - 1, sorted(by_numba)
    for name, calls in recorded.items():
        for kernel, values in calls:
            built_result = _result(kernel, values)
            assert same_bits(
                _as_numbers(built_result), _as_numbers(_result(kernel.py_func, values))
            ), f"{name}: Python"
            if name in by_numba:
                assert same_bits(built_result, _result(kernel._dispatcher, values)), (
                    f"{name}: numba"
                )


def _result(form: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """What a form returns, and its arguments as it leaves them."""
    mine = copy.deepcopy(values)
    with np.errstate(all="ignore"):
        return form(*mine), mine


def _as_numbers(value: Any) -> Any:
    """Python's own numbers and numpy's of the same value are one: a function as it is written
    returns either."""
    if isinstance(value, tuple):
        return tuple(_as_numbers(one) for one in value)
    return value.item() if isinstance(value, np.generic) else value


def test_commands_import_neither_numba_nor_scipy_where_kernels_are_built() -> None:
    code = (
        "import sys\nfrom shardwright.cli.main import run\ncode = run(sys.argv[1:])\nfrom"
        " shardwright import built_kernels\n"
    )
    code += (
        "print(code, built_kernels.fallbacks, sorted({'numba', 'llvmlite', 'scipy', 'pydantic',"
        " 'typer', 'rich'} & set(sys.modules)))"
    )
    if compiled.form != "built":
        pytest.skip("this installation has no extension")
    job = ["--seq-len", "64", "--global-batch", "8", "--quiet"]
    for words in (
        ["plan", "examples/tiny.json", "h100-sxm:4", *job],
        ["plan", "llama-3.2-1b", "h100-sxm:16", *job],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=SOURCE.parent,
        )
        assert done.stdout.splitlines()[-1] == "0 {} []"


# ---- changed sources -----------------------------------------------------------------------------


def written_again(kernel: Any, **changes: str) -> types.FunctionType:
    """The function of a kernel from its module's source, changed in places."""
    function = built_kernels._python_function(kernel)
    text = Path(inspect.getsourcefile(function) or "").read_text(encoding="utf-8")
    for new in changes.values():
        before, after = new.split(" -> ")
        assert before in text
        text = text.replace(before, after)
    names: dict[str, Any] = {"__name__": function.__module__}
    exec(compile(text, "<changed>", "exec"), names)
    return built_kernels._python_function(names[function.__name__])


def test_a_digest_sees_code_and_constants_and_no_words() -> None:
    kernel = longest_path.longest_path
    same = source_digest(kernel)
    assert source_digest(written_again(kernel)) == same
    assert (
        source_digest(written_again(kernel, words="Earliest start -> The earliest start")) == same
    )
    assert (
        source_digest(
            written_again(kernel, spaces="    told = 0\n ->     # A comment.\n\n    told = 0\n")
        )
        == same
    )
    assert (
        source_digest(
            written_again(kernel, constant="np.full(num_tasks, -1 -> np.full(num_tasks, -2")
        )
        != same
    )
    assert (
        source_digest(written_again(kernel, code="start[after] < now -> start[after] <= now"))
        != same
    )


@pytest.mark.parametrize(
    ("name", "value"), [("mark_stuck", None), ("np", types.ModuleType("other"))]
)
def test_a_digest_sees_what_a_kernel_calls(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    before = source_digest(longest_path.longest_path)
    other = (
        written_again(longest_path.mark_stuck, code="start[task] = -1 -> start[task] = -3")
        if value is None
        else value
    )
    monkeypatch.setitem(
        built_kernels._python_function(longest_path.longest_path).__globals__, name, other
    )
    assert source_digest(longest_path.longest_path) != before


def test_a_digest_sees_constants_of_other_modules_enumerations_and_fields() -> None:
    from enum import IntEnum
    from typing import NamedTuple

    def read(value: Any) -> str:
        exec("def one():\n    return NAME\n", names := {"NAME": value, "__name__": "somewhere"})
        return source_digest(names["one"])

    values: list[Any] = [
        1,
        2,
        1.0,
        "1",
        (1,),
        None,
        np.arange(2),
        np.arange(3),
        IntEnum("E", "A B"),
        IntEnum("E", "B A"),
    ]
    values += [
        NamedTuple("N", [("a", int), ("b", int)]),
        NamedTuple("N", [("b", int), ("a", int)]),
        types.ModuleType("m"),
    ]
    assert len({read(value) for value in values}) == len(values)


@built
def test_a_kernel_whose_source_has_changed_runs_in_its_new_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(built_kernels, "fallbacks", {})
    changed = written_again(
        longest_path.longest_path,
        code="now = start[task] + work[task] -> now = start[task] + 2 * work[task]",
    )
    changed.__module__, changed.__qualname__ = longest_path.__name__, "longest_path"
    kernel = BuiltKernel(changed, lambda function: function)
    assert [one.tolist() for one in kernel(*WORK)] == [[0, 6, 6], [6, 8, 10]]
    assert built_kernels.fallbacks == {kernel_name(kernel): "changed"}
    assert [one.tolist() for one in longest_path.longest_path(*WORK)] == [[0, 3, 3], [3, 4, 5]]


# ---- arguments -----------------------------------------------------------------------------------


@built
@pytest.mark.parametrize(
    "values",
    [
        (WORK[0], WORK[1].astype(np.int64), *WORK[2:]),
        (WORK[0].astype(np.float64), *WORK[1:]),
        (np.repeat(WORK[0], 2)[::2], *WORK[1:]),
        (WORK[0].astype(">i8"), *WORK[1:]),
    ],
)
def test_arguments_of_other_types_are_never_read_as_the_built_ones(
    monkeypatch: pytest.MonkeyPatch, values: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(built_kernels, "fallbacks", {})
    kernel = BuiltKernel(
        built_kernels._python_function(longest_path.longest_path), lambda function: function
    )  # type: ignore[arg-type]
    assert [one.tolist() for one in kernel(*values)] == [[0, 3, 3], [3, 4, 5]]
    assert built_kernels.fallbacks == {kernel_name(kernel): "arguments"}


@built
def test_names_and_wrong_numbers_of_arguments() -> None:
    names = ("work", "indegree", "successor_start", "successor")
    expected = [one.tolist() for one in longest_path.longest_path(*WORK)]
    call: Any = longest_path.longest_path
    assert [
        one.tolist() for one in call(*WORK[:2], **dict(zip(names[2:], WORK[2:], strict=True)))
    ] == expected
    for wrong in (WORK[:3], (*WORK, WORK[0])):
        with pytest.raises(TypeError, match="longest_path"):
            call(*wrong)
    with pytest.raises(TypeError, match="longest_path"):
        call(*WORK, other=1)


# ---- building ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "first"),
    [
        (build_kernels.NotBuiltError("no C compiler"), 1, "note: "),
        (build_kernels.NotCompiledError("AttributeError: Gone"), 2, "error: "),
    ],
)
def test_a_defect_of_the_source_is_an_error_and_a_missing_tool_is_not(
    error: Exception,
    code: int,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(path: Path, *, processes: int) -> None:
        raise error

    monkeypatch.setattr(build_kernels, "build", build)
    assert build_kernels.main([]) == code
    assert capsys.readouterr().err.startswith(first)


def test_a_kernel_with_wrong_argument_types_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    try:
        build_kernels._c_compiler()
    except build_kernels.NotBuiltError as reason:
        pytest.skip(str(reason))
    gone = "shardwright.simulator.kernel.longest_path:gone"
    monkeypatch.setattr(build_kernels, "_signatures", lambda: {gone: []})
    with pytest.raises(build_kernels.NotCompiledError, match="gone"):
        build_kernels.build(tmp_path / "_kernels.so", processes=1)


def test_a_compiler_with_words_before_it_is_used_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in CC="ccache gcc"."""
    try:
        compiler = build_kernels._c_compiler()
    except build_kernels.NotBuiltError as reason:
        pytest.skip(str(reason))
    monkeypatch.setenv("CC", f"env {compiler[0]}")
    assert build_kernels._c_compiler() == ["env", compiler[0]]


def test_a_kernel_is_built_loaded_and_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    name = "shardwright.simulator.kernel.longest_path:longest_path"
    compiler = build_kernels._c_compiler
    try:
        compiler()
    except build_kernels.NotBuiltError as reason:
        pytest.skip(str(reason))
    monkeypatch.setattr(build_kernels, "_signatures", lambda: {name: SIGNATURES[name]})
    path = tmp_path / "_kernels.so"
    build_kernels.build(path, processes=1)
    code = f"""
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
spec = spec_from_loader("shardwright._kernels",\
 ExtensionFileLoader("shardwright._kernels", {str(path)!r}))
sys.modules["shardwright._kernels"] = module = module_from_spec(spec)
import numpy as np
from shardwright import built_kernels
from shardwright import kernel_compilation as compiled
from shardwright.simulator.kernel.longest_path import longest_path
built_kernels.use_extension(module)
compiled.form = "built"
kernel = built_kernels.BuiltKernel(built_kernels._python_function(longest_path), None)
work = np.array([3, 1, 2]), np.array([0, 1, 1], np.int32),\
 np.array([0, 2, 2, 2], np.int32), np.array([1, 2], np.int32)
print([one.tolist() for one in kernel(*work)], built_kernels.fallbacks)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"SHARDWRIGHT_KERNELS": "python"},
    )
    assert done.stdout.strip() == "[[0, 3, 3], [3, 4, 5]] {}"


def test_without_a_c_compiler_nothing_is_built_and_a_note_says_so(tmp_path: Path) -> None:
    path = tmp_path / "_kernels.so"
    done = subprocess.run(
        [sys.executable, "-m", "shardwright.build_kernels", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": str(tmp_path), "CC": "absent"},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "note: kernels are not built ahead of time: no C compiler was found"
    ]
    assert not path.exists()


@cache
def planned(form: str) -> str:
    """What a plan in a process of its own says."""
    words = [
        "plan",
        "examples/tiny.json",
        "h100-sxm:2",
        "--seq-len",
        "64",
        "--global-batch",
        "4",
        "--quiet",
    ]
    return subprocess.run(
        [sys.executable, "-m", "shardwright", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=SOURCE.parent,
        env=os.environ | {"SHARDWRIGHT_KERNELS": form},
    ).stdout


@pytest.mark.parametrize("form", ["numba", "python"])
def test_without_the_extension_the_other_forms_plan_the_same(form: str) -> None:
    assert planned(form) == planned("")


def test_an_extension_that_does_not_load_is_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "load_extension", lambda: None)
    assert compiled.choose_form("") in ("numba", "python")
    assert compiled.choose_form("python") == "python"
