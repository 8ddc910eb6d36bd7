"""Settings of NeMo 2's own recipes and shared trainer functions, from which a file starts."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.find_launched_recipe_function import RECIPE
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.runtime.parse_launch_arguments import Arguments

FIELDS: Final = names(
    "tensor-model-parallel-size pipeline-model-parallel-size"
    " virtual-pipeline-model-parallel-size context-parallel-size sequence-parallel"
    " expert-model-parallel-size seq-length global-batch-size micro-batch-size"
)
"""Columns of `RECIPES`; sequence parallelism is 1 or 0, and virtual stages are 0 where there are
none."""
RECIPES: Final = MappingProxyType(
    {
        "baichuan2_7b": "1 1 0 2 0 1 8192 512 1",
        "chatglm3_6b": "1 1 0 2 0 1 8192 512 1",
        "gemma3_1b": "1 1 0 1 0 1 8192 512 1",
        "gemma_2b": "1 1 0 2 0 1 8192 512 1",
        "gemma_7b": "2 1 0 2 0 1 8192 512 1",
        "gpt3_175b": "4 8 6 1 1 1 2048 2048 2",
        "llama2_7b": "2 1 0 1 0 1 4096 512 1",
        "llama31_405b": "8 8 2 4 1 1 8192 512 1",
        "llama31_70b": "4 4 5 2 1 1 8192 512 1",
        "llama31_8b": "1 1 0 2 0 1 8192 512 1",
        "llama31_nemotron_70b": "4 4 5 2 1 1 8192 512 1",
        "llama31_nemotron_nano_8b": "1 1 0 2 0 1 8192 512 1",
        "llama32_1b": "1 1 0 1 0 1 8192 512 1",
        "llama32_3b": "1 1 0 1 0 1 8192 512 1",
        "llama3_70b": "4 4 5 2 1 1 8192 512 1",
        "llama3_8b": "1 1 0 2 0 1 8192 512 1",
        "llama4_e128": "4 1 0 1 1 128 8192 512 1",
        "llama4_e16": "4 1 0 1 1 16 8192 512 1",
        "mistral_7b": "1 1 0 2 0 1 4096 512 1",
        "mistral_nemo_12b": "2 1 0 2 1 1 8192 512 1",
        "mixtral_8x22b": "2 4 14 2 1 8 4096 512 1",
        "mixtral_8x22b_64k": "2 4 14 2 1 8 65536 512 1",
        "mixtral_8x7b": "1 4 8 1 0 8 4096 512 1",
        "phi3_mini_4k_instruct": "1 1 0 1 0 1 4096 512 1",
        "starcoder_15b": "1 8 0 1 0 1 4096 32 2",
    }
)
"""Recipe -> its numbers for pretraining, in the order of `FIELDS`."""
TRAINERS: Final = MappingProxyType(
    {
        "trainer": {"tensor-model-parallel-size": "1", "sequence-parallel": "true"},
        "nemotron-trainer": {"tensor-model-parallel-size": "2"},
        "qwen2-trainer": {"tensor-model-parallel-size": "2"},
        "qwen3-trainer": {"tensor-model-parallel-size": "1"},
        "starcoder2-trainer": {"tensor-model-parallel-size": "2"},
        "gemma2-trainer": {"tensor-model-parallel-size": "1"},
    }
)
"""Trainer functions that several recipes share -> their defaults; ``trainer`` is DeepSeek's."""
_ARGUMENTS: Final = MappingProxyType(
    {
        "tensor-parallelism": "tensor-model-parallel-size",
        "pipeline-parallelism": "pipeline-model-parallel-size",
        "virtual-pipeline-parallelism": "virtual-pipeline-model-parallel-size",
        "context-parallelism": "context-parallel-size",
        "sequence-parallelism": "sequence-parallel",
        "expert-parallelism": "expert-model-parallel-size",
        "expert-tensor-parallelism": "expert-tensor-parallel-size",
    }
)
"""Arguments of the trainer functions -> fields of the strategy."""
TRAINER_ARGUMENTS: Final = MappingProxyType(
    {f"{trainer}.{name}": field for trainer in TRAINERS for name, field in _ARGUMENTS.items()}
)


def base_settings(settings: Arguments) -> Iterator[tuple[str, str]]:
    """Yield (field, text) of NeMo's own recipe from which a file starts; none without a recipe.

    Raises:
        DataError: the recipe is unknown, or is for fine-tuning.
    """
    recipe = settings.get(RECIPE, "")
    if not recipe:
        return
    module, _, function = recipe.partition(".")
    if module not in RECIPES or function != "pretrain_recipe":
        raise DataError(
            f"NeMo's recipe {recipe[:60]} is not known here",
            hint=(
                "the file of the recipe beside it; known for pretraining:"
                f" {', '.join(RECIPES)[:200]}"
            ),
        )
    for name, value in zip(FIELDS, RECIPES[module].split(), strict=True):
        if name == "sequence-parallel":
            yield name, "true" if value == "1" else "false"
        elif value != "0":
            yield name, value


def trainer_defaults(settings: Arguments) -> Arguments:
    """Field -> default of the trainer functions that a file calls, without fields that it sets."""
    used = [
        trainer
        for trainer in TRAINERS
        if any(f"{trainer}.{name}" in settings for name in _ARGUMENTS)
    ]
    named = {field for key, field in TRAINER_ARGUMENTS.items() if key in settings} | {
        key.rpartition(".")[2] for key in settings if "strategy." in key
    }
    return {
        name: value
        for trainer in used
        for name, value in TRAINERS[trainer].items()
        if name not in named
    }
