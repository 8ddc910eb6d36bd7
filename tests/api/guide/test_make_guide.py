"""A guide has only rules whose searches came to their end; its command makes it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shardwright.api.guide.guide_rule_and_advice_classes import Advice
from shardwright.api.guide.make_guide import guide_document, make_guide
from shardwright.api.guide.make_serving_guide_of_request import make_serving_guide
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.training_rules_in_order import RULES
from shardwright.cli.main import run
from shardwright.files.canonical_json import to_text
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP

REQUEST = Request(model="llama-3.2-1b", cluster="h100-sxm:2", seq_len=2048, global_batch=16)


@pytest.fixture(autouse=True)
def not_stopped() -> Iterator[None]:
    yield
    STOP.clear()


def test_a_rule_that_is_judged_when_searches_are_stopped_is_left_out() -> None:
    first, second, third = RULES[:3]

    def stop(facts: RequestFacts) -> Advice:
        STOP.set()
        return second.advise(facts)

    guide = make_guide(REQUEST, rules=[first, replace(second, advise=stop), third])
    assert [rule.name for rule in guide.rules] == [first.name]
    assert guide.skipped == (second.name, third.name)
    assert guide.best.gap == 0


def test_the_command_of_a_serving_guide_makes_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    guide = make_serving_guide(REQUEST, answer=300)
    assert run([*shlex.split(guide.command)[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(to_text(guide_document(guide)))
