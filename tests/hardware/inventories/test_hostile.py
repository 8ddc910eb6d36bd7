"""Files that are made to take all of a machine are refused before they do."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.detect_format_and_read_inventory import (
    read_inventory,
    read_inventory_file,
)
from shardwright.hardware.inventories.documents import size_limited_text as lines_and_numbers

BOMB = '<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)
)
DEEP = 300_000
TEXTS: dict[str, tuple[Callable[[], str], str]] = {
    "entities": (lambda: f'{BOMB}]><system version="&j;"/>', "a document type"),
    "a parameter entity": (
        lambda: '<!DOCTYPE s [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]><s/>',
        "a document type",
    ),
    "a DTD elsewhere": (
        lambda: '<!DOCTYPE s SYSTEM "http://example.org/s.dtd"><system/>',
        "a document type",
    ),
    "deep XML": (lambda: "<system>" * DEEP, "too many elements"),
    "many elements": (lambda: f"<system>{'<cpu/>' * 20_001}</system>", "too many elements"),
    "a long attribute": (lambda: f'<system version="{"1" * 5000}"/>', "an attribute is too long"),
    "another encoding": (
        lambda: '<?xml version="1.0" encoding="no-such"?><systen/>',
        "<systen> is no topology",
    ),
    "half a character": (lambda: "<system>\ud800</system>", "is no XML text"),
    "many devices": (
        lambda: f"<system><cpu>{'<pci><gpu/></pci>' * 1025}</cpu></system>",
        "1025 devices and 0 cards",
    ),
    "deep JSON": (lambda: "[" * DEEP, "no JSON"),
    "deep objects": (lambda: '{"items":' * DEEP, "no JSON"),
    "many objects": (lambda: "[" + "[]," * 1_000_001 + "[]]", "too many values"),
    "many values": (lambda: "[" + "1," * 4_000_001 + "1]", "too many values"),
    "a long number": (lambda: f'{{"items": [{{"kind": "Node", "x": {"9" * 5000}}}]}}', "no JSON"),
    "a long line": (lambda: "NodeName=a\n" + "x" * 2**21, "a line of 2097152 characters"),
    "a long line of spaces": (lambda: "SwitchName=a Nodes=b\n" + " " * 2**20 + "x", "characters"),
    "many lines": (lambda: "\n" * 2_000_001 + "NodeName=a", "more than 2000000 lines"),
    "many names": (
        lambda: "SwitchName=a Nodes=node[0-999999999]\n",
        "stands for more than 65,536 names",
    ),
    "many columns": (
        lambda: " ".join(f"GPU{n}" for n in range(300)) + "\nGPU0 X\n",
        "a header of 300 columns",
    ),
    "empty": (lambda: " \n ", "is empty"),
    "binary": (lambda: "NodeName=a\0b", "is binary"),
    "prose": (lambda: "These are our nodes.", "has no form that is read"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_refused(name: str) -> None:
    make, message = TEXTS[name]
    with pytest.raises(ClusterError, match=message):
        read_inventory(make(), name="t")


@pytest.mark.parametrize(
    "name", ["entities", "deep JSON", "many objects", "many names", "a long line"]
)
def test_refusing_takes_little_memory(name: str) -> None:
    text = TEXTS[name][0]()
    tracemalloc.start()
    with pytest.raises(ClusterError):
        read_inventory(text, name="t")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20 + 8 * len(text)


FILES = {
    "larger than is read": (lambda: b"x" * (2**20 + 1), "is larger than"),
    "UTF-16": (lambda: "NodeName=a".encode("utf-16"), "is not UTF-8 text"),
    "a picture": (lambda: b"\x89PNG\r\n\x1a\n\0\0", "is not UTF-8 text"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = FILES[name]
    monkeypatch.setattr(lines_and_numbers, "MAX_BYTES", 2**20)
    path = tmp_path / "some.txt"
    path.write_bytes(make())
    with pytest.raises(ClusterError, match=message):
        read_inventory_file(path)


@pytest.mark.parametrize("name", ["no-such-file", ".", "/dev/zero", "a\0b"])
def test_what_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(ClusterError):
        read_inventory_file(Path(name))
