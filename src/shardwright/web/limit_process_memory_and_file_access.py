"""Limits of a search's process: memory, and the files that it may open."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from shardwright.errors import ResourceError
from shardwright.units import format_bytes


def limit_memory(further_bytes: int) -> None:
    """Limit the address space to the present size plus `further_bytes`; nothing where unsupported.

    Does nothing where the system has no such limit.
    """
    try:
        import resource  # Unix only

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return
    limit = pages * resource.getpagesize() + further_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def out_of_memory(further_bytes: int) -> ResourceError:
    """The error of a question that needs more memory than its process may use."""
    return ResourceError(
        f"the answer needs more than the {format_bytes(further_bytes)} that this server gives to"
        " a question",
        hint="a smaller space (standard, or pins), or the command line on a larger machine",
    )


def only_open_files_of(folder: Path) -> None:
    """From now on this process opens only files of `folder` or Python packages, and no program.

    Every other file is not found, whatever names it: a request, or a text that came with it.
    """
    sys.addaudithook(
        _hook(
            roots=(*_package_folders(), str(folder)),
            module_roots=tuple(os.path.realpath(path) for path in sys.path if path),
        )
    )


def _package_folders() -> list[str]:
    """Folders of Python, of its installed packages and of those loaded; and the null device."""
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    folders |= {
        str(Path(file).parent)
        for name, module in tuple(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and hasattr(module, "__path__")
        if "." not in name
    }
    folders.add(os.environ.get("NUMBA_CACHE_DIR", ""))
    return [os.path.realpath(folder) for folder in sorted(folders) if folder] + [os.devnull]


def _hook(
    *, roots: tuple[str, ...], module_roots: tuple[str, ...]
) -> Callable[[str, tuple[Any, ...]], None]:
    """Audit hook: raise for files outside `roots` (modules: `module_roots`) and for new programs.

    Args:
        roots: files, and folders with all that is in them.
        module_roots: folders in which only modules are found, for imports that come later.
    """
    suffixes = tuple(all_suffixes())

    def is_in(path: str, folders: tuple[str, ...]) -> bool:
        """True if a path is one of the folders, or in one."""
        return any(path == root or path.startswith(root + os.sep) for root in folders)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        """Raise FileNotFoundError for a file outside the roots, PermissionError for a program."""
        if event == "open":
            path = arguments[0]
            if isinstance(path, int):
                return
            real = os.path.realpath(os.fsdecode(path))
            if not (is_in(real, roots) or (real.endswith(suffixes) and is_in(real, module_roots))):
                raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
            raise PermissionError(f"{event}: a question starts no program")

    return check
