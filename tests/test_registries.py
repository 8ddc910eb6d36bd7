"""Every registry is complete, and a message of a test that fails names the file to edit."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from shardwright.api.request_to_problem import SearchMethod
from shardwright.api.table_of_general_plan_searches import SEARCHES
from shardwright.cli.verb_table import SUMMARIES, VERBS
from shardwright.collectives.algorithm_registry import ALGORITHMS, LIBRARIES
from shardwright.frameworks.export.launchers.registry import LAUNCHERS
from shardwright.frameworks.registry import READERS, TARGETS
from shardwright.hardware.catalog.accelerators_by_name import ACCELERATORS
from shardwright.hardware.catalog.compute_capability_by_gpu import (
    generation_by_prefix,
    generation_of,
)
from shardwright.hardware.catalog.multiprocessors_and_gemm_tiles import MULTIPROCESSORS
from shardwright.schedules.schedule_registry import SCHEDULES
from tests.registries import ROOT, place, require_files, require_members, require_same_members

DOCS = ROOT / "docs"


def test_messages_name_what_exists() -> None:
    assert place("docs/errors.md") == "docs/errors.md"
    assert place("tests/registries.py", "place") == "place in tests/registries.py"
    with pytest.raises(AssertionError, match=r"tests/none\.py, which does not exist"):
        place("tests/none.py")
    with pytest.raises(AssertionError, match=r"_ROWS, which is not in tests/registries\.py"):
        place("tests/registries.py", "_ROWS")


def test_missing_and_further_names_are_told() -> None:
    require_members("abc", "ab", "X in y.py")
    require_same_members("abc", "abc", "X in y.py")
    with pytest.raises(AssertionError, match=r"^add b, c to X in y\.py$"):
        require_members("a", "abc", "X in y.py")
    with pytest.raises(AssertionError, match=r"^remove c from X in y\.py: "):
        require_same_members("abc", "ab", "X in y.py")
    require_files([], "tests/test_MODULE.py", "NAME")
    with pytest.raises(AssertionError, match=r"^add tests/test_a_b\.py with `a-b`; add tests/test"):
        require_files(["c", "a-b"], "tests/test_MODULE.py", "`NAME`")


NVIDIA = {device.name: device for device in ACCELERATORS if device.vendor == "NVIDIA"}


MULTIPROCESSORS_LISTED = place(
    "src/shardwright/hardware/catalog/multiprocessors_and_gemm_tiles.py", "_LISTED"
)


def test_every_nvidia_accelerator_has_multiprocessors() -> None:
    require_members(MULTIPROCESSORS, NVIDIA, MULTIPROCESSORS_LISTED)


def test_every_nvidia_accelerator_has_a_generation() -> None:
    """The generation of its multiprocessors, which a prefix of its name does not contradict."""
    require_members(
        (name for name, device in NVIDIA.items() if generation_of(device)),
        NVIDIA.keys() & MULTIPROCESSORS.keys(),
        f"a kind with a `generation` in {MULTIPROCESSORS_LISTED}",
    )
    prefixes = place(
        "src/shardwright/hardware/catalog/compute_capability_by_gpu.py", "_GENERATION_BY_PREFIX"
    )
    for name, device in NVIDIA.items():
        number = generation_of(device)
        assert generation_by_prefix(name) in {0, number}, (
            f"{name} has compute capability {number} in {MULTIPROCESSORS_LISTED}, and another of a"
            f' prefix: add "{name}": {number} at the beginning of {prefixes}'
        )


def test_every_verb_has_a_summary() -> None:
    require_same_members(SUMMARIES, VERBS, place("src/shardwright/cli/verb_table.py", "SUMMARIES"))


def test_every_method_of_general_plans_has_a_search() -> None:
    require_same_members(
        SEARCHES,
        set(SearchMethod) - {SearchMethod.GRID},
        place("src/shardwright/api/table_of_general_plan_searches.py", "SEARCHES"),
    )


def test_every_collective_algorithm_is_run_by_a_library() -> None:
    require_same_members(
        {name for names in LIBRARIES.values() for name in names},
        ALGORITHMS,
        place("src/shardwright/collectives/algorithm_registry.py", "LIBRARIES"),
    )


def test_every_schedule_has_a_test_of_its_own() -> None:
    """The tests of all schedules accept any order without a deadlock: one must know this order."""
    files = ("tests/schedules/test_papers.py", "tests/schedules/test_schedules.py")
    text = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    require_members(
        (name for name in SCHEDULES if f'"{name}"' in text),
        SCHEDULES,
        f"{place(files[0])}: a test of its idle time, or of a table that you write by hand (as"
        f" {place(files[1], 'test_rows_of_1f1b_by_hand')})",
    )


def test_every_export_target_has_tests() -> None:
    tested = {
        name
        for path in sorted((ROOT / "tests" / "frameworks").glob("*/test_write.py"))
        for name in TARGETS
        if re.search(rf'"{re.escape(name)}"', path.read_text(encoding="utf-8"))
    }
    require_files(
        set(TARGETS) - tested,
        "tests/frameworks/MODULE/test_write.py",
        'tests of the export target "NAME" (`stored` of tests/frameworks/plans.py exports a plan)',
    )


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("docs/schedules.md", "What does each schedule cost", SCHEDULES),
        ("docs/collectives.md", "all_reduce, all_gather, reduce_scatter", ALGORITHMS),
        ("docs/exports.md", "Which frameworks can I export to", TARGETS),
        ("docs/exports.md", "How do I start it on my scheduler", LAUNCHERS),
    ],
    ids=["schedules", "collectives", "targets", "launchers"],
)
def test_every_member_is_in_its_page(page: str, heading: str, names: Iterable[str]) -> None:
    words = set(re.findall(r"[\w.-]+", (ROOT / page).read_text(encoding="utf-8")))
    require_members(words, names, f"the table below {place(page, heading)}")


def test_every_reader_is_named_in_its_page() -> None:
    text = (DOCS / "advise.md").read_text(encoding="utf-8").lower()
    require_members((name for name in READERS if name in text), READERS, place("docs/advise.md"))


def test_every_page_is_listed() -> None:
    index = DOCS / "README.md"
    linked = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text(encoding="utf-8"))
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    require_members(linked, pages, place("docs/README.md"))


def test_every_verb_is_named_in_a_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    named = {verb for verb in VERBS if re.search(rf"shardwright {re.escape(verb)}\b", text)}
    require_files(
        set(VERBS) - named,
        "an example to a page of docs (a new page docs/NAME.md needs a row in docs/README.md)",
        "a block ```console that begins `shardwright NAME`",
    )
