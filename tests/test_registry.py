"""Members of a family are found by name or alias, and imported when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from shardwright.cli.verb_table import VERBS
from shardwright.collectives.algorithm_registry import ALGORITHMS
from shardwright.errors import RuntimeModelError, ShardwrightError, StrategyError, UsageError
from shardwright.model.families.family_registry import REGISTRY
from shardwright.registry import Registry, load_target
from shardwright.schedules.schedule_registry import SCHEDULES

FRUIT = Registry[object](
    "fruit",
    {"apple": "shardwright.units:GIB", "pear": "shardwright.units:MIB"},
    aliases={"pomme": "apple"},
    error=partial(StrategyError, rule="order.schedule"),
)


def test_a_member_is_found_by_its_name_and_by_its_alias() -> None:
    assert FRUIT.load("apple") == FRUIT.load("pomme") == 2**30
    assert [*FRUIT] == ["apple", "pear"]
    assert len(FRUIT) == 2
    assert ("pomme" in FRUIT, "plum" in FRUIT) == (True, False)


def test_an_unknown_name_has_a_hint() -> None:
    with pytest.raises(StrategyError, match=r"unknown fruit 'aple' \[order.schedule\]") as caught:
        FRUIT.load("aple")
    assert caught.value.hint.startswith("did you mean apple")
    with pytest.raises(UsageError, match=f"unknown verb '{'x' * 80}'"):
        VERBS.load("x" * 1000)


@pytest.mark.parametrize(
    ("family", "error"),
    [(ALGORITHMS, RuntimeModelError), (SCHEDULES, StrategyError), (VERBS, UsageError)],
)
def test_every_member_of_a_family_can_be_imported(
    family: Registry[object], error: type[ShardwrightError]
) -> None:
    assert len({id(family.load(name)) for name in family}) == len(family) > 15
    with pytest.raises(error):
        family.load("absent")


def test_every_builder_of_a_model_family_can_be_imported() -> None:
    assert all(callable(load_target(target)) for target in set(REGISTRY.values()))


def test_a_family_imports_no_member_before_it_is_asked_for() -> None:
    code = (
        "import sys; from shardwright.schedules.schedule_registry import SCHEDULES;"
        " print(*sys.modules);"
        " SCHEDULES.load('gems'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (set(line.split()) for line in done.stdout.splitlines())
    assert "shardwright.schedules.gems" in after - before
