"""Ten thousand inputs made from valid ones end in a value or in one line; `make fuzz` gives a million of a new seed."""

from __future__ import annotations

import pytest

from shardwright.errors import ShardwrightError, UsageError
from tests.fuzz.hunt import hunt, input_of, verdict
from tests.fuzz.parsers import Parser, parsers
from tests.tiers import in_both, many, random_of

INPUTS = 10_000


def test_samples_are_valid() -> None:
    """What is mutated is what the parsers read."""
    found = {parser.name: [verdict(parser, text) for text in parser.samples] for parser in parsers()}
    assert {name: said for name, said in found.items() if any(said)} == {}
    for parser in parsers():
        for text in parser.samples:
            parser.read(text)


@in_both
def test_no_input_escapes() -> None:
    seed = str(random_of("fuzz").randrange(10**9))
    escapes = hunt(parsers(), many(INPUTS), seed=seed)
    assert [(escape.parser, escape.seed, escape.what) for escape in escapes[:5]] == []


def test_a_seed_repeats_its_input() -> None:
    parser = Parser(name="p", read=str, samples=("tp8 pp4", "dp=2"))
    assert input_of(parser, "7 1") == input_of(parser, "7 1")
    assert len({input_of(parser, f"7 {k}") for k in range(50)}) > 40


def _refuse(text: str) -> object:
    raise UsageError(f"{text} is bad\nfor two reasons", hint="h" * 2000 if text == "long" else "another")


def test_what_an_escape_is() -> None:
    """An error of another kind, a message that is too long; a warning, as it is somebody else's line on the screen."""
    assert "ZeroDivisionError" in verdict(Parser(name="p", read=lambda text: 1 / len(text), samples=("",)), "")
    assert "not one printable line" in verdict(Parser(name="p", read=_refuse, samples=("",)), "long")
    assert verdict(Parser(name="p", read=_refuse, samples=("",)), "short\x1b[31m\ud800") == ""


def test_messages_never_steer_a_terminal() -> None:
    error = ShardwrightError("unknown \x1b[31mfield\n\ud800 é", hint="known:\u202e x")
    assert (error.message, error.hint) == ("unknown \\x1b[31mfield \\ud800 é", "known:\\u202e x")


@pytest.mark.parametrize("text", ['n = "[[a]"', f"n = {'9' * 5000}"])
def test_found_before(text: str) -> None:
    (facts,) = (parser for parser in parsers() if parser.name == "facts")
    assert verdict(facts, text.replace("n =", "where = {source_id =") + "}") == ""
