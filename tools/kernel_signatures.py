"""Write kernel_signatures.json: the argument types with which each compiled kernel is called.

    # add what the commands below call
    python tools/kernel_signatures.py
    # add what these tests call
    python -m pytest -p tools.kernel_signatures -n 0 tests/search/orders

Kernels run as numba compiles them, once for each list of argument types that they meet; those lists
are what the file holds. Lists that differ only in which arrays may be written or are contiguous
become one. A test fails where a command of the tests calls a kernel with types that the file does
not have; delete a kernel's entry before running this where its types have changed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("SHARDWRIGHT_KERNELS", "numba")
ROOT = Path(__file__).parents[1]
FILE = ROOT / "src" / "shardwright" / "kernel_signatures.json"
COMMANDS = (
    "plan llama-3.1-8b h100-sxm:8 --seq-len 8192 --global-batch 256",
    "plan llama-3.1-405b h100-sxm:16384 --seq-len 8192 --global-batch 2048",
    "plan mixtral-8x7b h100-sxm:16 --seq-len 4096 --global-batch 64 --quiet",
    "plan llama-3.1-8b tpu-v5p:16 --seq-len 4096 --global-batch 64 --quiet",
    "plan llama-3.1-8b v100-sxm-32gb:16 --seq-len 4096 --global-batch 64 --quiet",
    "plan llama-3.1-8b h100-sxm:16 --seq-len 8192 --global-batch 128 --space joint --time-limit 10",
    "plan llama-2-13b a100-sxm-80gb:8+v100-sxm-32gb:8 --seq-len 2048 --global-batch 64",
    (
        "plan examples/tiny.json h100-sxm:1+v100-sxm-32gb:1 --seq-len 64 --global-batch 4"
        " --precision fp16 --space exact"
    ),
    (
        "simulate llama-3.1-8b h100-sxm:8 --seq-len 4096 --global-batch 32 --strategy 'tp2 sp pp4"
        " schedule=zb-v'"
    ),
    (
        "simulate llama-3.1-8b h100-sxm:8 --seq-len 4096 --global-batch 32 --strategy 'tp2 sp pp2"
        " dp2 mbs1 zero1'"
    ),
    (
        "serve-simulate llama-3.3-70b h200-sxm:8 --deployment tp8 --precision fp8 --isl 1024 --osl"
        " 1024 --concurrency 256"
    ),
    (
        "serve-simulate llama-3.1-8b h100-sxm:1 --engine 'vllm-0.12 token_budget=4096 async=on'"
        " --isl 512 --osl 64 --concurrency 8"
    ),
)


def describe(kind: Any) -> Any:
    """A numba type as the file has it."""
    import numpy as np
    from numba.core import types
    from numba.np import numpy_support

    from shardwright.numba_tuples_by_reference import Reference

    if isinstance(kind, Reference):
        return describe(kind.held)
    if isinstance(kind, types.BaseTuple):
        of = getattr(kind, "instance_class", None)
        return {"tuple": [describe(one) for one in kind]} | (
            {"class": f"{of.__module__}:{of.__qualname__}"} if of else {}
        )
    if isinstance(kind, types.Array):
        dtype = np.lib.format.dtype_to_descr(numpy_support.as_dtype(kind.dtype))
        return {
            "array": dtype,
            "dimensions": kind.ndim,
            "contiguous": kind.layout == "C",
            "writable": bool(kind.mutable),
        }
    if isinstance(kind, types.Boolean):
        return "bool"
    return "int64" if isinstance(kind, types.Integer) else "float64"


def recorded() -> dict[str, list[Any]]:
    """The argument types of all kernels that this process has called."""
    from numba.core.dispatcher import Dispatcher

    result: dict[str, list[Any]] = {}
    for name, module in list(sys.modules.items()):
        for key, value in list(vars(module).items()) if name.startswith("shardwright") else ():
            if not isinstance(value, Dispatcher) or value.py_func.__module__ != name:
                continue
            if (
                value.targetoptions.get("no_cpython_wrapper")
                or value.targetoptions.get("inline") == "always"
            ):
                continue
            result[f"{name}:{key}"] = [
                [describe(one) for one in signature] for signature in value.signatures
            ]
    return result


def merged(one: Any, other: Any) -> Any:
    """Argument types that both are of; None where there are none."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        items = [merged(a, b) for a, b in zip(one, other, strict=True)]
        return None if None in items else items
    if isinstance(one, str) or isinstance(other, str):
        return one if one == other else None
    if "tuple" in one and "tuple" in other and one.get("class") == other.get("class"):
        items = merged(one["tuple"], other["tuple"])
        return None if items is None else one | {"tuple": items}
    if (
        "array" in one
        and "array" in other
        and (one["array"], one["dimensions"]) == (other["array"], other["dimensions"])
    ):
        return one | {key: one[key] and other[key] for key in ("contiguous", "writable")}
    return None


def add(found: dict[str, list[Any]]) -> None:
    """Merge what was found into the file."""
    kept: dict[str, list[Any]] = (
        json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    )
    for name, lists in json.loads(json.dumps(found)).items():
        mine = kept.setdefault(name, [])
        for one in lists:
            for at, other in enumerate(mine):
                both = merged(one, other)
                if both is not None:
                    mine[at] = both
                    break
            else:
                mine.append(one)
    lines = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(one)}" for one in lists) + "]"
        for name, lists in sorted(kept.items())
        if lists
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def pytest_sessionfinish() -> None:
    """Add what the tests of this process called."""
    add(recorded())


def main() -> None:
    """Run the commands and write the file."""
    from shardwright.cli.main import run

    os.chdir(ROOT)
    for command in COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()):
            code = run(shlex.split(command))
        sys.stdout.write(f"{code} {command}\n")
    add(recorded())


if __name__ == "__main__":
    main()
