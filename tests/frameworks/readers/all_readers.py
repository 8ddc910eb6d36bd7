"""The tests of every reader, and the files of their launches by framework."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.frameworks.readers import test_others, test_recipes, test_trainers
from tests.frameworks.readers.conformance import Conformance

READER_TESTS: Final[tuple[type[Conformance], ...]] = tuple(
    found
    for module in (test_trainers, test_others, test_recipes)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Conformance) and found is not Conformance
)


def _files() -> dict[tuple[str, str], tuple[str, ...]]:
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for tests in READER_TESTS:
        for name, text in (
            *(file for case in tests.cases for file in case.files),
            *((name, text) for name, text, _ in tests.refusals),
        ):
            key = (tests.__name__.removeprefix("Test").lower(), Path(name).suffix)
            found[key] = (*found.get(key, ()), text)
    return found


FRAMEWORKS: Final = _files()
"""(framework, ending of a file) -> texts of such files."""
