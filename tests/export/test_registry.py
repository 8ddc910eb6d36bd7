"""Every target takes any model or refuses it in a line, and says in its files for which version they were written."""

from __future__ import annotations

import pytest

from shardwright.api.exports import export_plan
from shardwright.errors import StrategyError
from shardwright.export.registry import TARGETS
from shardwright.strategy.text.grid_notation import parse_grid
from tests.export.plans import stored

ODD = ("t5-11b", "llava-1.5-7b", "mamba-codestral-7b", "deepseek-v3", "gpt-oss-20b", "gpt2-xl")
WORDS = ("tp2 sp pp2 dp2 zero0 recompute=full", "tp2 dp4 zero2 recompute=selective offload=50")


@pytest.mark.parametrize("model", ODD)
def test_models_of_any_kind_are_taken_or_refused(model: str) -> None:
    refused = []
    for words in WORDS:
        one = stored(parse_grid(words), model=model, runtime="megatron-core")
        for target in TARGETS:
            try:
                found = export_plan(one, target=target, allow_lossy=True)
            except StrategyError as error:
                refused.append(str(error))
                continue
            assert all(file.text for file in found.files)
    assert refused
    assert all("[export.refused]" in one and "cannot say: " in one for one in refused)


@pytest.mark.parametrize("target", TARGETS)
def test_files_say_their_version(target: str) -> None:
    found = export_plan(stored(parse_grid("dp8 zero0")), target=target, allow_lossy=True)
    exporter = TARGETS[target]
    assert exporter.name == target
    assert any(exporter.version in file.text and "Made by Shardwright" in file.text for file in found.files)
