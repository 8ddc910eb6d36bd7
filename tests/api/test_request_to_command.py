"""The command of a request, read again by its verb, is the request."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api import compare_strategies_and_clusters as compare_strategies
from shardwright.api import request_to_problem
from shardwright.api import simulate_strategy_and_verify_stored as simulate_strategy
from shardwright.api.request_to_command import (
    command_text,
    cost_options,
    request_to_command,
    strategy_options,
    without_search_values,
)
from shardwright.cli.parsing.parse_memory_and_cost import read_prices, read_tokens
from shardwright.cli.verbs import compare, guide, plan, simulate
from shardwright.errors import UsageError
from shardwright.search.search_request import Request
from tests.tiers import examples

SMALL = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=32)
WORD = st.from_regex(r"[a-z][a-z0-9./:_-]{0,20}", fullmatch=True)
AXES = st.sampled_from(["tp", "pp", "cp", "zero", "mbs", "recompute", "tp_overlap"])
CHOICES = st.dictionaries(
    AXES,
    st.lists(st.from_regex(r"[a-z0-9:.-]{1,8}", fullmatch=True), min_size=1, max_size=3),
    max_size=3,
).map(lambda found: tuple((axis, tuple(values)) for axis, values in found.items()))


def decimals(low: str, high: str, places: int = 9) -> st.SearchStrategy[Any]:
    return st.decimals(min_value=low, max_value=high, places=places)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": WORD,
    "cluster": st.one_of(
        st.sampled_from(["h100-sxm:8,network=0.5x", "a b.yaml", "nodes:\n  - {count: 2}\n"]), WORD
    ),
    "seq_len": st.integers(1, 10**9),
    "global_batch": st.integers(1, 10**9),
    "runtime": WORD,
    "precision": WORD,
    "pins": CHOICES,
    "excludes": CHOICES,
    "max_devices": st.integers(0, 10**6),
    "use_all": st.booleans(),
    "reserve_bytes": decimals("0", "1000").map(lambda gib: round(float(gib) * 2**30)),
    "reserve_fraction": decimals("0", "99", 7).map(lambda percent: float(percent) / 100),
    "headroom": decimals("0", "99", 7).map(lambda percent: float(percent) / 100),
    "search_memory": decimals("0", "1000").map(lambda gib: round(float(gib) * 2**30)),
    "encoder_len": st.integers(0, 10**6),
    "image_tokens": st.integers(0, 10**6),
    "expert_imbalance": st.floats(1.0, 100.0),
    "dropout": st.booleans(),
    "gradient_wire": WORD,
    "space": st.sampled_from(["standard", "exhaustive", "joint", "joint-named"]),
    "lanes": st.integers(1, 9),
    "top": st.integers(0, 1000),
    "profile": WORD,
    "train": WORD,
    "teacher": WORD,
    "objective": st.sampled_from(["time", "cost", "energy"]),
    "budget": decimals("0", "999999").map(float),
    "scenarios": WORD,
    "tail": st.floats(0.0, 1.0),
}


ONLY_OF_PLAN = frozenset(
    {
        *("use_all", "search_memory", "space", "lanes", "top", "objective", "budget"),
        *("scenarios", "tail"),
    }
)
LIMITS = frozenset({"max_devices", "headroom"})
CHOSEN = frozenset({"pins", "excludes"})


class FoundError(Exception):
    """Carries the request that `plan` was about to search."""


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request with some fields other than usual, as words of a command line may make it."""
    always = ("model", "cluster", "seq_len", "global_batch")
    chosen = draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=8))
    given = {name: draw(VALUES[name]) for name in (*always, *sorted(chosen))}
    if given.get("reserve_bytes"):
        given.pop("reserve_fraction", None)
    if given.get("lanes", 1) > 1:
        given["space"] = "exact"
    return Request(**given)


def test_every_field_is_drawn() -> None:
    assert set(VALUES) == {field.name for field in fields(Request)}


READERS: dict[str, tuple[Any, Any, str, frozenset[str]]] = {
    "plan": (plan, request_to_problem, "method_of", frozenset()),
    "guide": (guide, guide, "make_guide", ONLY_OF_PLAN),
    "compare": (compare, compare_strategies, "compare", ONLY_OF_PLAN | LIMITS),
    "simulate": (simulate, simulate_strategy, "simulation", ONLY_OF_PLAN | LIMITS | CHOSEN),
}
"""Module of a verb, the function that gets its request (module and name), and fields that the verb
has no option for."""


def request_of_command(words: tuple[str, ...]) -> Request:
    """The request that the command line makes of words, read as a shell reads them."""
    program, verb, *arguments = shlex.split(shlex.join(words))
    assert program == "shardwright"
    module, owner, name, _ = READERS[verb]

    def found(request: Request, **_further: Any) -> None:
        raise FoundError(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, found)
        with pytest.raises(FoundError) as caught:
            module.main(arguments)
    request: Request = caught.value.args[0]
    return request


@pytest.mark.parametrize("verb", READERS)
@given(data=st.data())
@examples(40, 500)
def test_the_command_makes_the_request_again(verb: str, data: st.DataObject) -> None:
    request = data.draw(requests())
    options = strategy_options(["tp8"]) if verb in ("simulate", "compare") else ()
    unsaid = {name for name in READERS[verb][3] if getattr(request, name) != getattr(SMALL, name)}
    if unsaid:
        with pytest.raises(UsageError, match="has no option for"):
            request_to_command(request, verb=verb, options=options)
        assert command_text(request, verb=verb, options=options) == ""
        request = replace(request, **{name: getattr(SMALL, name) for name in unsaid})
    words = request_to_command(request, verb=verb, options=options)
    assert words[1] == verb
    assert request_of_command(words) == request


@given(request=requests())
@examples(40, 500)
def test_a_request_without_search_values_is_simulated(request: Request) -> None:
    """Only scenarios have no option of `simulate` then; values of the job stay."""
    simulated = without_search_values(replace(request, scenarios=""))
    command = request_to_command(simulated, verb="simulate", options=strategy_options(["tp8"]))
    assert request_of_command(command) == simulated
    for name in set(VALUES) - ONLY_OF_PLAN - LIMITS - CHOSEN:
        assert getattr(simulated, name) == getattr(request, name)


def test_options_at_their_defaults_are_left_out() -> None:
    assert request_to_command(SMALL) == (
        *("shardwright", "plan", "llama-3.1-8b", "h100-sxm:8"),
        *("--seq-len", "4096", "--global-batch", "32"),
    )


@given(
    prices=st.dictionaries(
        st.sampled_from(["", "h100-sxm", "a100-sxm-80gb"]), st.floats(0, 1e6), max_size=3
    ),
    tokens=st.one_of(
        st.just(0.0), st.sampled_from([1e6, 1.5e12, 15e12, 123456789.0, 0.1]), st.floats(1e-3, 1e20)
    ),
)
@examples(40, 500)
def test_the_options_of_costs_are_read_again(prices: dict[str, float], tokens: float) -> None:
    words = cost_options(prices, tokens=tokens)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    assert read_prices([value for option, value in pairs if option == "--price"]) == prices
    assert read_tokens("".join(text for option, text in pairs if option == "--tokens")) == tokens


def test_tokens_are_written_as_people_write_them() -> None:
    assert cost_options({"": 2.5}, tokens=1e6) == ("--price", "2.5", "--tokens", "1M")
    assert cost_options({}, tokens=1.5e12) == ("--tokens", "1.5T")


def test_a_request_that_no_command_makes() -> None:
    with pytest.raises(UsageError, match="has no command"):
        request_to_command(replace(SMALL, reserve_bytes=1, reserve_fraction=0.1))
