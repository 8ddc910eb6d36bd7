"""Ten thousand inputs made from valid ones end in a value or in one line; `make fuzz` gives a
million of a new seed."""

from __future__ import annotations

import csv
import json
import re
from math import inf
from pathlib import Path

import pytest

from shardwright.errors import ShardwrightError, UsageError
from shardwright.model.families.huggingface_config import model_from_config, parse_config
from tests.fuzz.hunt import hunt, input_of, verdict
from tests.fuzz.parsers import Parser, parsers
from tests.registries import place, require_same_members
from tests.tiers import in_both, many, random_of

INPUTS = 4_000
REACHED = Path(__file__).with_name("reached.csv")
"""Inputs of each parser that ended as they should, since it was last mended; `python -m tests.fuzz
--parser NAME` reads more."""
WANTED = 100_000


def reached() -> dict[str, int]:
    """Inputs by parser, as recorded."""
    rows = csv.DictReader(REACHED.read_text(encoding="utf-8").splitlines())
    return {row["parser"]: int(row["inputs"]) for row in rows}


def test_samples_are_valid() -> None:
    """What is mutated is what the parsers read."""
    found = {
        parser.name: [verdict(parser, text) for text in (*parser.samples, *parser.others)]
        for parser in parsers()
    }
    assert {name: said for name, said in found.items() if any(said)} == {}
    for parser in parsers():
        for text in parser.samples:
            parser.read(text)


@in_both
def test_no_input_escapes() -> None:
    seed = str(random_of("fuzz").randrange(10**9))
    escapes = hunt(parsers(), many(INPUTS, 50_000), seed=seed)
    assert [(escape.parser, escape.seed, escape.what) for escape in escapes[:5]] == []


def test_the_record_has_every_parser() -> None:
    require_same_members(
        reached(), (parser.name for parser in parsers()), place("tests/fuzz/reached.csv")
    )


def test_every_parser_has_read_many_inputs() -> None:
    assert {name: inputs for name, inputs in reached().items() if inputs < WANTED} == {}


def test_a_seed_repeats_its_input() -> None:
    parser = Parser(name="p", read=str, samples=("tp8 pp4", "dp=2"))
    assert input_of(parser, "7 1") == input_of(parser, "7 1")
    assert len({input_of(parser, f"7 {k}") for k in range(50)}) > 40


def _refuse(text: str) -> object:
    raise UsageError(
        f"{text} is bad\nfor two reasons", hint="h" * 2000 if text == "long" else "another"
    )


def test_what_an_escape_is() -> None:
    """An error of another kind, a message that is too long; a warning, as it is somebody else's
    line on the screen."""
    assert "ZeroDivisionError" in verdict(
        Parser(name="p", read=lambda text: 1 / len(text), samples=("",)), ""
    )
    assert "not one printable line" in verdict(
        Parser(name="p", read=_refuse, samples=("",)), "long"
    )
    assert verdict(Parser(name="p", read=_refuse, samples=("",)), "short\x1b[31m\ud800") == ""


def test_messages_never_steer_a_terminal() -> None:
    error = ShardwrightError("unknown \x1b[31mfield\n\ud800 é", hint="known:\u202e x")
    assert (error.message, error.hint) == ("unknown \\x1b[31mfield \\ud800 é", "known:\\u202e x")


FOUND = {
    "launch of transformers.yaml": (
        f"per_device_train_batch_size: 1\nnum_train_epochs: 0x1{'0' * 5000}\n",
    ),
    "cluster": (
        "h100-" + "(" * 3000,
        f"h100-sxm:8@{'e' * 3000}+a100-sxm-80gb:8@west,{'e' * 3000}~west=25gbps",
    ),
    "facts": ('where = {source_id = "[[a]"}', f"where = {{tp = {'9' * 5000}}}"),
    "plan file": ('{"schema": "shardwright.plan", "version": 2, "digest": "\udfff"}',),
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in FOUND.items() for text in texts]
)
def test_found_before(name: str, text: str) -> None:
    (parser,) = (parser for parser in parsers() if parser.name == name)
    assert verdict(parser, text) == ""
    with pytest.raises(ShardwrightError):
        parser.read(text)


def test_a_number_that_no_float_holds_is_read_as_an_infinite_one() -> None:
    """JSON's 1e400 is infinite; the same in digits was an OverflowError."""
    (parser,) = (parser for parser in parsers() if parser.name == "configuration")
    sample = next(text for text in parser.samples if "GPTBigCodeForCausalLM" in text)
    for written in ("1e400", "9" * 400):
        text = json.dumps({**json.loads(sample), "resid_pdrop": "huge"}).replace('"huge"', written)
        assert ("resid_pdrop", inf) in model_from_config(
            parse_config(text.encode(), source="config.json"), name="m"
        ).settings.dropout
        assert verdict(parser, text) == ""


def test_a_device_without_memory_is_refused() -> None:
    """A tampered file; its memory was divided by."""
    (parser,) = (parser for parser in parsers() if parser.name == "explained plan")
    whole = parser.samples[0]
    with pytest.raises(
        ShardwrightError, match="capacity_bytes is 0, not a whole number of at least 1"
    ):
        parser.read(re.sub(r'"capacity_bytes": [0-9]+', '"capacity_bytes": 0', whole))
