"""Classes of `lazily_compiled_dataclass` behave as those of the standard decorator, and compile
nothing until a method is called."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.lazily_compiled_dataclass import dataclass
from tests.tiers import examples

SETTINGS = [
    {"frozen": True, "slots": True, "eq": eq, "kw_only": kw_only}
    for eq in (True, False)
    for kw_only in (True, False)
]


def _body(settings: dict[str, bool]) -> dict[str, Any]:
    """A class body with fields of every kind, and a method that reads them at birth."""
    begin = {"one": 1} if settings["kw_only"] else {}

    def __post_init__(self: Any) -> None:  # noqa: N807
        if self.two == "bad":
            raise ValueError(self.two)

    return {
        "__annotations__": {
            "one": "int",
            "two": "str",
            "three": "list[int]",
            "four": "int",
            "five": "int",
            "six": "int",
        },
        **begin,
        "two": "two",
        "three": dataclasses.field(default_factory=list, compare=True),
        "four": dataclasses.field(default=4, compare=False),
        "five": dataclasses.field(default=5, repr=False),
        "six": dataclasses.field(default=6, init=False),
        "__post_init__": __post_init__,
        "__doc__": "A class.",
        "__module__": __name__,
        "__qualname__": "Made",
    }


def _pair(settings: dict[str, bool]) -> tuple[Any, Any]:
    made = [
        how(**settings)(type("Made", (), _body(settings)))
        for how in (dataclass, dataclasses.dataclass)
    ]
    return made[0], made[1]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


words = st.dictionaries(
    st.sampled_from(["one", "two", "three", "four", "five", "six", "seven"]),
    st.integers(0, 3) | st.just("bad"),
)


@given(
    settings=st.sampled_from(SETTINGS),
    named=words,
    others=words,
    places=st.lists(st.integers(0, 2), max_size=2),
)
@examples(100, 1000)
def test_the_same_as_the_standard_decorator(
    settings: dict[str, bool], named: Any, others: Any, places: list[int]
) -> None:
    lazy, standard = _pair(settings)
    results = []
    for cls in (lazy, standard):
        one, other = (
            _outcome(lambda cls=cls: cls(*places, **named)),
            _outcome(lambda cls=cls: cls(**others)),
        )
        said: list[Any] = [repr(one), repr(other)]
        if isinstance(one, cls):
            said += [
                dataclasses.astuple(one),
                _outcome(lambda one=one: setattr(one, "one", 2)),
                _outcome(lambda one=one: delattr(one, "two")),
            ]
            said += [
                _outcome(lambda one=one: dataclasses.replace(one, two=3).two),
                one == other,
                one == copy.copy(one),
                one != one,
            ]
            said += [
                (
                    hash(dataclasses.replace(one, three=()))
                    if settings["eq"]
                    else one.__hash__ is not None
                )
            ]
            said += [dataclasses.asdict(copy.deepcopy(one))]
        results.append(said)
    assert results[0] == results[1]


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_tools_read_of_a_class_is_the_same(settings: dict[str, bool]) -> None:
    lazy, standard = _pair(settings)
    parameters = [
        [(one.name, one.kind) for one in inspect.signature(cls).parameters.values()]
        for cls in (lazy, standard)
    ]
    assert parameters[0] == parameters[1]
    assert repr(lazy.__dataclass_params__) == repr(standard.__dataclass_params__)
    assert [repr(one) for one in dataclasses.fields(lazy)] == [
        repr(one) for one in dataclasses.fields(standard)
    ]
    assert lazy.__slots__ == standard.__slots__
    assert lazy.__match_args__ == standard.__match_args__
    assert (lazy.__hash__ is object.__hash__) == (standard.__hash__ is object.__hash__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Further(Point):
    z: int = 0


class Own(Point):
    """No dataclass: it may have attributes of its own."""


def test_records_are_pickled_inherited_from_and_frozen() -> None:
    for one in (Point(x=1), Further(x=1, y=2, z=3)):
        assert pickle.loads(pickle.dumps(one)) == one
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.x = 2  # type: ignore[misc]
    own = Own(x=1)
    own.more = 2  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        own.x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        Point(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'w'"):
        Point(x=1, w=2)  # type: ignore[call-arg]


COMPILED = """
import dataclasses
asked = []
create = dataclasses._create_fn
dataclasses._create_fn = lambda name, *rest, **named:\
 (asked.append(name), create(name, *rest, **named))[1]
import shardwright.cli.verbs.plan
print(len(asked))
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="the standard library puts its methods together in another way",
)
def test_classes_of_a_plan_compile_few_methods_as_they_are_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 150, "2,000 with the standard decorator"
