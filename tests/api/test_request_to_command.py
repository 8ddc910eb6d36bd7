"""The command of a request, read again, is the request."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api import request_to_problem
from shardwright.api.request_to_command import request_to_command
from shardwright.cli.parsing.parse_memory_and_cost import read_prices
from shardwright.cli.verbs import plan
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


@given(request=requests())
@examples(40, 500)
def test_the_command_makes_the_request_again(request: Request) -> None:
    program, verb, *words = shlex.split(shlex.join(request_to_command(request)))
    assert (program, verb) == ("shardwright", "plan")

    def found(request: Request) -> None:
        raise FoundError(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_to_problem, "method_of", found)
        with pytest.raises(FoundError) as caught:
            plan.main(words)
    assert caught.value.args == (request,)


def test_options_at_their_defaults_are_left_out() -> None:
    assert request_to_command(SMALL) == (
        *("shardwright", "plan", "llama-3.1-8b", "h100-sxm:8"),
        *("--seq-len", "4096", "--global-batch", "32"),
    )


def test_prices_are_of_a_million_tokens() -> None:
    words = request_to_command(SMALL, prices={"h100-sxm": 2.5, "": 0.1})
    assert words[-6:] == ("--price", "0.1", "--price", "h100-sxm=2.5", "--tokens", "1M")
    given = [words[at + 1] for at, word in enumerate(words) if word == "--price"]
    assert read_prices(given) == {"h100-sxm": 2.5, "": 0.1}


def test_a_request_that_no_command_makes() -> None:
    with pytest.raises(UsageError, match="has no command"):
        request_to_command(replace(SMALL, reserve_bytes=1, reserve_fraction=0.1))
