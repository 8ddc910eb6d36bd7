"""People's words for strategies: what each means, that the notation is left alone, and that any
text is read or refused in a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import changed_grid, parse_grid, print_grid
from shardwright.strategy.text.translate_phrases_to_grid_notation import (
    DEGREES,
    PHRASES,
    translate_phrases,
)
from tests.registries import place
from tests.tiers import examples

FILLERS = place("src/shardwright/strategy/text/translate_phrases_to_grid_notation.py", "_FILLERS")
PLAN = Grid(tp=2, sp=True, pp=2, dp=8, microbatch=2, zero=1)
SAID = {
    "fsdp": "dp32 mbs2 zero3 recompute=none",
    "FSDP2": "dp32 mbs2 zero3 recompute=none",
    "ddp": "dp32 mbs2 zero0 recompute=none",
    "zero-3": "tp2 sp pp2 dp8 mbs2 zero3 recompute=none",
    "ZeRO stage 2": "tp2 sp pp2 dp8 mbs2 zero2 recompute=none",
    "shard_grad_op": "dp32 mbs2 zero2 recompute=none",
    "no recompute": "tp2 sp pp2 dp8 mbs2 zero1 recompute=none",
    "gradient checkpointing": "tp2 sp pp2 dp8 mbs2 zero1 recompute=full",
    "more recompute": "tp2 sp pp2 dp8 mbs2 zero1 recompute=selective",
    "more tp": "tp4 sp pp2 dp4 mbs2 zero1 recompute=none",
    "less tensor parallelism": "pp2 dp16 mbs2 zero1 recompute=none",
    "no pipeline parallelism": "tp2 sp dp16 mbs2 zero1 recompute=none",
    "tensor-parallel 4": "tp4 sp pp2 dp4 mbs2 zero1 recompute=none",
    "pipeline parallel size 4": "tp2 sp pp4 dp4 mbs2 zero1 recompute=none",
    "smaller micro-batch": "tp2 sp pp2 dp8 mbs1 zero1 recompute=none",
    "fsdp with tp4": "tp4 sp dp8 mbs2 zero3 recompute=none",
    "zero bubble": "tp2 sp pp2 dp8 mbs2 zero1 recompute=none schedule=zb-h1",
    "offload": "tp2 sp pp2 dp8 mbs2 zero1 recompute=none offload=100",
}


@pytest.mark.parametrize(("words", "text"), SAID.items())
def test_a_phrase_is_the_change_that_people_mean(words: str, text: str) -> None:
    reading = translate_phrases(words, of=PLAN)
    assert reading.read_as
    assert changed_grid(PLAN, reading.text) == changed_grid(PLAN, text)


@pytest.mark.parametrize("phrase", [*PHRASES, *(f"{name} 2" for name in DEGREES)])
def test_every_phrase_is_of_the_notation(phrase: str) -> None:
    try:
        reading = translate_phrases(phrase, of=PLAN)
    except StrategyError as error:
        pytest.fail(f"{phrase!r} is not read ({error}): does it hold a word of {FILLERS}?")
    assert parse_grid(reading.text)


@given(
    st.builds(
        Grid,
        tp=st.integers(1, 8),
        pp=st.integers(1, 8),
        dp=st.integers(1, 8),
        zero=st.integers(0, 3),
        recompute=st.sampled_from(list(Recompute)),
    )
)
@examples(100)
def test_the_notation_stays_as_it_is(grid: Grid) -> None:
    reading = translate_phrases(print_grid(grid), of=PLAN)
    assert (reading.text, reading.read_as) == (print_grid(grid), "")


def test_a_word_of_the_notation_decides() -> None:
    assert parse_grid(translate_phrases("fsdp tp4 zero2", of=None).text, devices=8) == parse_grid(
        "tp4 zero2", devices=8
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fdsp", "unknown word 'fdsp' in a strategy (hint: did you mean fsdp"),
        ("quantum", "unknown word 'quantum' in a strategy (hint: known: cp-gather, cpN, "),
        ("ofload=1", "unknown word 'ofload=1' in a strategy (hint: did you mean offload"),
        ("more tp", "more tp: than what? (hint: a strategy of its own says a number: tp4)"),
    ],
)
def test_what_is_no_strategy_is_refused(words: str, message: str) -> None:
    with pytest.raises(StrategyError) as error:
        translate_phrases(words, of=None)
    assert str(error.value).startswith(message)


def test_nothing_is_less_than_one() -> None:
    with pytest.raises(StrategyError, match="the plan has cp1"):
        translate_phrases("less context parallelism", of=PLAN)


WORDS = st.lists(
    st.sampled_from(
        [*{w for p in (*PHRASES, *DEGREES) for w in p.split()}, "more", "no", "tp4", "8", "=", "x"]
    ),
    max_size=6,
)


@given(WORDS, st.sampled_from([PLAN, None]))
@examples(300)
def test_any_words_are_read_or_refused(words: list[str], of: Grid | None) -> None:
    text = " ".join(words)
    grid: Grid | StrategyError
    try:
        reading = translate_phrases(text, of=of)
        grid = changed_grid(of, reading.text) if of else parse_grid(reading.text)
    except StrategyError as error:
        grid = error
    assert isinstance(grid, Grid) or "\n" not in str(grid)
