"""Build the extension `_kernels`: numba's machine code of all kernels, usable without numba.

    python -m shardwright.build_kernels            # beside this file, for an editable checkout
    python -m shardwright.build_kernels FILE       # elsewhere

setup.py runs it when the package is built or installed. It needs numba and a C compiler, and ends
with a message and exit code 1 where one is missing; the package then runs kernels as numba or
Python does. Exit code 2 says that a kernel and the list of its argument types disagree.

Each kernel is compiled for the argument types that `kernel_signatures.json` lists, for any
processor of this architecture. numba translates and optimizes; an entry point is added that takes
and returns plain numbers (kernels.c); the system's C compiler links.
"""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from shardwright.kernel_compilation import NUMBA_RELEASES

HERE: Final = Path(__file__).parent
ENVIRONMENT: Final = {
    "SHARDWRIGHT_KERNELS": "parts",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "NUMBA_OPT": "2",
}
"""Environment of the processes that compile: parts are only translated, and no instruction is used
that a processor may lack.
"""


class NotBuiltError(Exception):
    """Raised where this machine cannot build the extension, with the reason."""


class NotCompiledError(Exception):
    """Raised for a kernel that cannot be compiled with its types in `kernel_signatures.json`.

    It is a defect of this source, on every machine.
    """


def default_path() -> Path:
    """Path of the file that Python imports as shardwright._kernels in this source folder."""
    return HERE / f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"


def build(path: Path, *, processes: int) -> None:
    """Compile all kernels in several processes and write the extension to `path`.

    Kernels that have not changed since the last build of this checkout are not compiled again.

    Raises:
        NotBuiltError: this machine lacks something.
        NotCompiledError: a kernel cannot be compiled.
    """
    compiler = _c_compiler()
    if find_spec("numba") is None:
        raise NotBuiltError("numba is not installed")
    numba = version("numba")
    if numba.rpartition(".")[0] not in NUMBA_RELEASES:
        raise NotBuiltError(f"numba {numba} is not one of {', '.join(NUMBA_RELEASES)}")
    with tempfile.TemporaryDirectory() as folder:
        kept = HERE.parents[1] / "build" / "kernels" if HERE.parent.name == "src" else Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        names = _balanced_groups(sorted(_signatures()), processes)
        tables = [Path(folder) / f"{at}.table" for at in range(len(names))]
        path_of_python = os.pathsep.join([str(HERE.parent), *filter(None, sys.path)])
        parts = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "shardwright.build_kernels",
                    "--objects",
                    str(kept),
                    str(table),
                    *group,
                ],
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": path_of_python},
                stderr=subprocess.PIPE,
                text=True,
            )
            for table, group in zip(tables, names, strict=True)
        ]
        said = [part.communicate()[1].strip() for part in parts]
        for part, text in zip(parts, said, strict=True):
            if part.returncode:
                raise NotCompiledError(text.splitlines()[-1] if text else "numba failed")
        _link(compiler, [marshal.loads(table.read_bytes()) for table in tables], Path(folder), path)


def _balanced_groups(names: list[str], processes: int) -> list[list[str]]:
    """Divide kernel names into one group a process, about equal; a package's names stay together.

    Modules of a package share functions.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        package = ".".join(name.split(":")[0].split(".")[:2])
        groups.setdefault(package, []).append(name)
    result: list[list[str]] = [[] for _ in range(processes)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(result, key=len).extend(group)
    return [one for one in result if one]


def _c_compiler() -> list[str]:
    """Command of the first C compiler that runs; NotBuiltError if there is none."""
    wanted = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    words: list[str] = wanted.split()
    for candidate in (words, words[:1], ["cc"], ["gcc"], ["clang"]):
        try:
            if (
                subprocess.run(
                    [*candidate, "--version"], capture_output=True, check=False
                ).returncode
                == 0
            ):
                return candidate
        except OSError:
            continue
    raise NotBuiltError("no C compiler was found")


def _link(compiler: list[str], tables: list[dict[str, Any]], folder: Path, path: Path) -> None:
    """Compile kernels.c with the table of entry points, and link them with the machine code."""
    numpy = import_module("numpy")
    compiled = [one for table in tables for _, variants in table.values() for one in variants]
    symbols = [symbol for _, symbol, _ in compiled]
    objects = sorted(str(one) for one, _, _ in compiled)
    numbers = {symbol: at for at, symbol in enumerate(symbols)}
    table = {
        name: (digest, [(numbers[symbol], *variant) for _, symbol, variant in variants])
        for one in tables
        for name, (digest, variants) in one.items()
    }
    text = marshal.dumps(table)
    lines = ['#include "kernels.h"', *(f"extern entry_t {symbol};" for symbol in symbols)]
    lines.append(f"static entry_t *const entries[] = {{{', '.join(symbols)}}};")
    lines.append(f"static const unsigned char text[] = {{{','.join(map(str, text))}}};")
    lines.append("const struct built_table built_table = {")
    lines.append(f"    text, {len(text)}, entries, {len(symbols)}}};")
    (folder / "table.c").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "exports").write_text("{ global: PyInit__kernels; local: *; };\n", encoding="utf-8")
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"]
        if sys.platform == "darwin"
        else ["-shared", f"-Wl,--version-script={folder / 'exports'}", "-Wl,-s"]
    )
    command = [
        *(*compiler, "-O2", "-fPIC", "-fvisibility=hidden", *shared),
        *(f"-I{HERE}", f"-I{sysconfig.get_path('include')}", f"-I{numpy.get_include()}"),
        *(
            str(HERE / "kernels.c"),
            str(folder / "table.c"),
            *objects,
            "-lm",
            "-o",
            str(folder / "built"),
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuiltError(f"the C compiler failed: {done.stderr.strip()[-400:]}")
    load = (
        "import sys; from importlib.machinery import ExtensionFileLoader as L; from importlib.util"
        " import *\n"
    )
    load += (
        "s = spec_from_loader('shardwright._kernels', L('shardwright._kernels', sys.argv[1]));"
        " module_from_spec(s)"
    )
    done = subprocess.run(
        [sys.executable, "-c", load, str(folder / "built")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotBuiltError(f"the extension does not load: {done.stderr.strip()[-400:]}")
    # A process that has the old file open keeps it: the new one takes its name at once.
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes((folder / "built").read_bytes())
    temporary.chmod(0o755)
    temporary.replace(path)


def _signatures() -> dict[str, Any]:
    """Argument types of each kernel by its name, from `kernel_signatures.json`."""
    result: dict[str, Any] = json.loads(
        (HERE / "kernel_signatures.json").read_text(encoding="utf-8")
    )
    return result


def main(arguments: list[str]) -> int:
    """Build the extension, or with --objects one process's part of it, and return the exit code."""
    if arguments[:1] == ["--objects"]:
        import_module("shardwright.compile_numba_kernels_to_objects").write_objects(
            _signatures(), arguments[3:], Path(arguments[1]), Path(arguments[2])
        )
        return 0
    path = Path(arguments[0]) if arguments else default_path()
    try:
        build(path, processes=max(min(os.cpu_count() or 1, 4), 1))
    except NotBuiltError as reason:
        sys.stderr.write(f"note: kernels are not built ahead of time: {reason}\n")
        return 1
    except NotCompiledError as reason:
        sys.stderr.write(
            f"error: a kernel cannot be compiled: {reason}\n"
            "hint: correct its argument types in kernel_signatures.json"
            " (python tools/kernel_signatures.py)\n"
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
