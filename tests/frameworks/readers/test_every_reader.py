"""Every reader that is registered has its class of conformance tests, and every setting that it
says is told has a name."""

from __future__ import annotations

from shardwright.frameworks.registry import READERS
from tests.frameworks.readers.all_readers import READER_TESTS
from tests.registries import place, require_members

EARLIER = frozenset(
    {
        *(
            "megatron",
            "megatron-deepspeed",
            "megatron-bridge",
            "nemo",
            "flagscale",
            "deepspeed",
            "accelerate",
            "nanotron",
            "torchtitan",
        ),
        "maxtext",
    }
)
"""Readers whose tests are of their own kind: exports that come back, and published launches."""


def test_every_reader_has_its_conformance_tests() -> None:
    tested = {tests.framework for tests in READER_TESTS}
    where = f"{place('tests/frameworks/readers')}, as `framework` of a class of Conformance"
    require_members(tested, set(READERS) - EARLIER, where)
    require_members(READERS, tested, place("src/shardwright/frameworks/registry.py", "READERS"))
