"""Every target takes any model or refuses it in a line, and says in its files for which version
they were written."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardwright.api.exports.export_plan import export_plan
from shardwright.errors import StrategyError
from shardwright.frameworks.registry import READERS, STRATEGY_FLAGS, TARGETS, claimants
from shardwright.strategy.text.grid_notation import parse_grid
from tests.frameworks.plans import stored

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
    exporter = TARGETS.load(target)
    module = TARGETS.targets[target].split(":")[0].replace(".", "/")
    assert exporter.name == target, f"`name` of the Exporter in src/{module}.py is not {target}"
    assert any(
        exporter.version in file.text and "Made by Shardwright" in file.text for file in found.files
    ), f'no file of src/{module}.py has a comment with "Made by Shardwright" and its version'


def test_every_framework_has_the_name_under_which_it_is_found() -> None:
    assert [READERS.load(name).name for name in READERS] == [*READERS]
    assert [TARGETS.load(name).name for name in TARGETS] == [*TARGETS]
    assert all(callable(STRATEGY_FLAGS.load(name)) for name in STRATEGY_FLAGS)
    assert {*READERS} < {*claimants()}
    assert all(name == framework.name for name, framework in claimants().items())


def test_the_registry_imports_no_framework_before_it_is_asked_for() -> None:
    code = (
        "import sys; from shardwright.frameworks.registry import READERS;"
        " print(*sys.modules); READERS.load('deepspeed'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (
        {name for name in line.split() if name.endswith((".read", ".write", ".recipes"))}
        for line in done.stdout.splitlines()
    )
    assert not before
    assert after == {"shardwright.frameworks.deepspeed.read"}


def refusal(target: str, **asked: str) -> str:
    """What a target refuses of a plan; nothing where it exports it."""
    try:
        export_plan(
            stored(parse_grid("ep8 dp8 zero1"), runtime="megatron-core", **asked),
            target=target,
            allow_lossy=True,
        )
    except StrategyError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("target", TARGETS)
def test_only_what_the_request_freezes_is_frozen(target: str) -> None:
    """The correction of DeepSeek-V3's router has no gradient in any framework, and a model without
    its prediction modules is whole."""
    assert "frozen" not in refusal(target, model="deepseek-v3")
    assert "frozen" not in refusal(target, model="deepseek-v3", train="without:mtp")


@pytest.mark.parametrize(
    "asked", [{"train": "frozen:embed"}, {"train": "lora:r16"}, {"teacher": "deepseek-v3-no-mtp"}]
)
def test_frozen_parameters_adapters_and_teachers_are_refused(asked: dict[str, str]) -> None:
    train_all = ("torchtitan", "megatron", "maxtext")
    assert all(
        "frozen parameters or adapters" in refusal(target, model="deepseek-v3-no-mtp", **asked)
        for target in train_all
    )


def test_torchtitan_takes_deepseek_v3_without_its_prediction_modules() -> None:
    one = stored(parse_grid("ep8 dp8 zero3"), model="deepseek-v3", train="without:mtp")
    assert "671B" in export_plan(one, target="torchtitan", allow_lossy=True).files[0].text
