"""A search's process opens the files of its folder and of Python packages, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import os, sys
from pathlib import Path
import shardwright.api.searches.grid_search
from shardwright.web.limit_process_memory_and_file_access import limit_memory, only_open_files_of
limit_memory(int(sys.argv[2]) * 2**20)
os.chdir(sys.argv[1])
only_open_files_of(Path(sys.argv[1]).resolve())
"""


def said(code: str, folder: Path, *words: str, memory_mib: int = 4096, before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + START + code, str(folder), str(memory_mib), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_file_outside_the_folder_is_found(tmp_path: Path) -> None:
    """By an absolute path, a relative one or a link: as if it did not exist."""
    inside, outside = tmp_path / "inside", tmp_path / "outside.txt"
    inside.mkdir()
    (inside / "mine.txt").write_text("mine")
    outside.write_text("secret")
    (inside / "link.txt").symlink_to(outside)
    code = """
for name in ("mine.txt", sys.argv[3], "../outside.txt", "link.txt", "/proc/self/environ"):
    try:
        print(open(name).read())
    except FileNotFoundError:
        print("not found")
"""
    assert said(code, inside, str(outside)).split("\n")[:-1] == ["mine"] + ["not found"] * 4


def test_modules_are_imported_later_and_other_files_beside_them_are_not_read(
    tmp_path: Path,
) -> None:
    modules, inside = tmp_path / "modules", tmp_path / "inside"
    inside.mkdir()
    (modules / "later").mkdir(parents=True)
    (modules / "later" / "__init__.py").write_text("NAME = 'imported'\n")
    (modules / "later" / "secret.json").write_text("{}")
    code = """
import later
print(later.NAME)
try:
    open(later.__file__.replace("__init__.py", "secret.json"))
    print("read")
except FileNotFoundError:
    print("not found")
"""
    where = f"import sys; sys.path.append({str(modules)!r})\n"
    assert said(code, inside, before=where) == "imported\nnot found\n"


def test_it_searches_and_starts_no_program(tmp_path: Path) -> None:
    code = """
from shardwright.search.search_request import Request
from shardwright.api.searches import grid_search
request = Request(model="llama-3.2-1b", cluster="h100-sxm:8", seq_len=4096, global_batch=16)
print(grid_search.plan(request).certificate.optimal)
import subprocess
for start in (lambda: os.system("true"), lambda: subprocess.run(["true"])):
    try:
        start()
        print("started")
    except PermissionError as error:
        print("refused")
"""
    assert said(code, tmp_path).split() == ["True", "refused", "refused"]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is of Linux")
def test_more_memory_than_the_limit_is_an_error(tmp_path: Path) -> None:
    code = """
a = bytearray(100 * 2**20)
try:
    b = bytearray(150 * 2**20)
    print("taken")
except MemoryError:
    print("refused")
"""
    assert said(code, tmp_path, memory_mib=200).split() == ["refused"]
