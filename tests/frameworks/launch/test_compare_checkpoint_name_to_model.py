"""The size that a launch's name of a model says, beside MODEL."""

from __future__ import annotations

import pytest

from shardwright.frameworks.launch.compare_checkpoint_name_to_model import compared_checkpoint
from shardwright.frameworks.settings.setting_verdicts import LaunchSetting, Verdict
from shardwright.model.catalog.load_model_by_name import load_model


@pytest.mark.parametrize(
    ("name", "model", "verdict"),
    [
        ("torchtune.models.qwen3.qwen3_1_7b_instruct", "qwen3-1.7b", Verdict.OF_THE_MODEL),
        ("torchtune.models.qwen2_5.qwen2_5_0_5b", "qwen2.5-0.5b", Verdict.OF_THE_MODEL),
        ("torchtune.models.llama3_1.llama3_1_8b", "llama-3.1-8b", Verdict.OF_THE_MODEL),
        ("torchtune.models.llama3_2.lora_llama3_2_1b", "llama-3.2-1b", Verdict.OF_THE_MODEL),
        ("torchtune.models.llama3_1.llama3_1_70b", "llama-3.1-8b", Verdict.DIFFERENT),
        ("torchtune.models.qwen3.qwen3_1_7b_instruct", "qwen3-8b", Verdict.DIFFERENT),
        ("Qwen/Qwen3-1.7B", "qwen3-1.7b", Verdict.OF_THE_MODEL),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b", Verdict.OF_THE_MODEL),
        ("a/b", "llama-3.1-8b", Verdict.IGNORED),
    ],
)
def test_a_name_is_compared_with_the_model(name: str, model: str, verdict: Verdict) -> None:
    setting = LaunchSetting(name="model.-component-", value=name, verdict=Verdict.IGNORED)
    assert compared_checkpoint(setting, load_model(model)).verdict is verdict
