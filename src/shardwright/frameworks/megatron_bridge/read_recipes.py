"""Reader of Megatron-Bridge's Python recipes, and of files that start from one of its recipes.

A recipe is a function that returns a `ConfigContainer`.

Source of names and of the recipes' numbers: Megatron-Bridge main of 2026-08,
src/megatron/bridge/recipes and recipes/common.py
(https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/main/src/megatron/bridge/recipes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.find_launched_recipe_function import RECIPE
from shardwright.frameworks.launch.framework_detection import (
    NO_CLAIM,
    Claim,
    Document,
    FileKind,
    Signature,
)
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.megatron_bridge.read import BRIDGE
from shardwright.frameworks.settings.refuse_unpriced_settings import refusals, refuse, refused
from shardwright.frameworks.settings.setting_verdicts import LaunchSetting, Verdict
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments

DOCS: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/main/src/megatron/bridge/recipes"
FIELDS: Final = names(
    "model.tensor-model-parallel-size model.pipeline-model-parallel-size"
    " model.virtual-pipeline-model-parallel-size model.context-parallel-size"
    " model.sequence-parallel model.expert-model-parallel-size dataset.seq-length"
    " train.global-batch-size train.micro-batch-size model.recompute-granularity"
)
"""Columns of `RECIPES`; sequence parallelism is 1 or 0, and virtual stages are 0 where there are
none."""
RECIPES: Final = MappingProxyType(
    {
        "deepseek_v2_lite_pretrain_8gpu_h100_bf16": "1 1 0 1 0 8 4096 512 1 full",
        "deepseek_v2_pretrain_128gpu_h100_bf16": "1 4 0 1 0 32 4096 512 1 full",
        "gemma2_2b_pretrain_2gpu_h100_bf16": "2 1 0 1 0 1 4096 32 2 none",
        "gemma2_9b_pretrain_8gpu_h100_bf16": "8 1 0 1 0 1 4096 32 2 none",
        "gemma2_27b_pretrain_16gpu_h100_bf16": "8 2 0 1 0 1 4096 32 2 none",
        "glm45_355b_pretrain_128gpu_h100_bf16": "2 8 0 1 1 16 4096 2048 1 selective",
        "glm45_air_106b_pretrain_32gpu_h100_bf16": "1 4 0 1 1 8 4096 2048 1 selective",
        "gpt_oss_20b_pretrain_16gpu_h100_bf16": "2 4 0 1 1 4 4096 512 1 none",
        "gpt_oss_120b_pretrain_64gpu_h100_bf16": "2 4 0 1 1 16 4096 512 1 none",
        "llama32_1b_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 8192 512 1 none",
        "llama32_3b_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 8192 512 1 none",
        "llama3_8b_pretrain_2gpu_h100_bf16": "1 1 0 2 0 1 8192 512 1 none",
        "llama3_70b_pretrain_32gpu_h100_bf16": "4 4 5 2 1 1 8192 512 1 none",
        "llama31_8b_pretrain_2gpu_h100_bf16": "1 1 0 2 0 1 8192 512 1 none",
        "llama31_70b_pretrain_32gpu_h100_bf16": "4 4 5 2 1 1 131072 512 1 none",
        "llama31_405b_pretrain_256gpu_h100_bf16": "8 8 2 4 1 1 131072 512 1 none",
        "qwen2_500m_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 4096 32 2 none",
        "qwen2_1p5b_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 4096 32 2 none",
        "qwen2_7b_pretrain_2gpu_h100_bf16": "2 1 0 1 0 1 4096 32 2 none",
        "qwen2_72b_pretrain_32gpu_h100_bf16": "8 4 0 1 0 1 4096 32 2 none",
        "qwen25_500m_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 4096 32 2 none",
        "qwen25_1p5b_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 4096 32 2 none",
        "qwen25_7b_pretrain_2gpu_h100_bf16": "2 1 0 1 0 1 4096 32 2 none",
        "qwen25_14b_pretrain_4gpu_h100_bf16": "4 1 0 1 0 1 4096 32 2 none",
        "qwen25_32b_pretrain_16gpu_h100_bf16": "8 2 0 1 0 1 4096 32 2 none",
        "qwen25_72b_pretrain_32gpu_h100_bf16": "8 4 0 1 0 1 4096 32 2 none",
        "qwen3_600m_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 4096 32 2 none",
        "qwen3_1p7b_pretrain_1gpu_h100_bf16": "1 1 0 1 0 1 4096 32 2 none",
        "qwen3_4b_pretrain_2gpu_h100_bf16": "2 1 0 1 0 1 4096 32 2 none",
        "qwen3_8b_pretrain_4gpu_h100_bf16": "4 1 0 1 0 1 4096 32 2 none",
        "qwen3_8b_pretrain_16gpu_h100_bf16": "1 1 0 1 0 1 4096 1024 1 none",
        "qwen3_14b_pretrain_8gpu_h100_bf16": "8 1 0 1 0 1 4096 32 2 none",
        "qwen3_32b_pretrain_16gpu_h100_bf16": "8 2 0 1 0 1 4096 32 2 full",
        "qwen3_30b_a3b_pretrain_8gpu_h100_bf16": "4 2 0 1 1 4 4096 32 2 full",
        "qwen3_30b_a3b_pretrain_16gpu_h100_bf16": "1 1 0 1 0 16 4096 1024 1 none",
        "qwen3_235b_a22b_pretrain_256gpu_h100_bf16": "4 16 0 2 1 8 4096 32 1 none",
    }
)
"""Recipe, without ``_config`` behind it -> its numbers, in the order of `FIELDS`."""
_COMMON: Final = MappingProxyType(
    {
        "_pretrain_common": {
            "dataset.seq-length": "4096",
            "train.global-batch-size": "32",
            "train.micro-batch-size": "2",
        },
        "_sft_common": {
            "dataset.seq-length": "2048",
            "train.global-batch-size": "128",
            "train.micro-batch-size": "1",
            "ddp.overlap-grad-reduce": "false",
            "ddp.overlap-param-gather": "false",
            "ddp.average-in-collective": "false",
        },
        "_peft_common": {
            "dataset.seq-length": "2048",
            "train.global-batch-size": "128",
            "train.micro-batch-size": "1",
            "ddp.overlap-grad-reduce": "false",
            "ddp.overlap-param-gather": "false",
            "ddp.average-in-collective": "false",
            "peft.dim": "32",
        },
    }
)
"""Settings that every recipe starts from (recipes/common.py)."""
_SUFFIX: Final = re.compile(r"_[0-9]+gpu_[a-z0-9]+_(?:bf16|fp8[a-z]*|nvfp4).*$")
_REFUSED: Final = MappingProxyType(
    {
        **refusals(
            {
                "Megatron's own FSDP": "ddp.use-megatron-fsdp",
                "moving saved activations to host memory": (
                    "model.fine-grained-activation-offloading"
                ),
            }
        ),
        "peft.dropout": refused("dropout before adapters", "0.0"),
        "default-peft-config": refused("these adapters", "lora"),
    }
)


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.PYTHON, FileKind.COMMAND}),
    programs=frozenset({"training/run_recipe.py"}),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert a recipe's settings, added to those of its base recipe, to a launch."""
    settings = {name: value for name, value in file_settings.arguments.items() if name != RECIPE}
    refuse(settings, _REFUSED)
    recipe = file_settings.arguments.get(RECIPE, "")
    base = {name: value for name, value in _base_settings(recipe) if name not in settings}
    dim = base.pop("peft.dim", "")
    settings = {name: value for name, value in settings.items() if name not in _PARTS}
    arguments = {
        name: _megatron_text(value)
        for name, value in {**base, **settings}.items()
        if not name.startswith(_REST)
    }
    launch = BRIDGE.read(
        replace(file_settings, arguments=arguments), model=model, devices=devices, runtime=runtime
    )
    rank = settings.get("peft.dim", dim)
    adapters = adapters_of(rank, settings.get("peft.target-modules", "all"), model)
    named = ", ".join(f"{name} {value}" for name, value in base.items())
    launch_settings = tuple(_verdicts(file_settings.arguments, launch, base))
    notes = (
        (f"{recipe}: {named} where the file does not set them ({DOCS})",) if base else ()
    ) + adapters.notes
    return replace(
        launch,
        framework="bridge-recipe",
        settings=launch_settings,
        train=adapters.train,
        notes=(*launch.notes, *notes),
    )


def _claim_recipe(signature: Signature, document: Document) -> Claim:
    """Claim of a file that starts from one of Megatron-Bridge's recipes; else no claim."""
    function = document.settings.get(RECIPE, "").rpartition(".")[2]
    is_recipe = function.endswith(("_config", *_COMMON)) and document.kind in signature.kinds
    return Claim(own=(RECIPE,)) if is_recipe else NO_CLAIM


BRIDGE_RECIPE: Final = LaunchReader(
    name="bridge-recipe",
    runtime=BRIDGE.runtime,
    includes=frozenset({"megatron-bridge", "nemo"}),
    signature=SIGNATURE,
    read=_read,
    evidence=_claim_recipe,
)
_REST: Final = names(
    "tokenizer. validation. scheduler. logger. checkpoint. env-vars peft. dist."
    " rng. default-peft-config. distributed-fused-adam-with-cosine-annealing."
    " optimizer.lr optimizer.min-lr optimizer.adam optimizer.weight default-"
    " dataset.num-workers dataset.blend dataset.split dataset.offline"
    " dataset.packed dataset.pad profiling. inprocess train.train-iters"
    " train.manual-gc model.pipeline-dtype model.moe-aux rerun tensor-inspect"
    " model.cuda-graph-warmup-steps model.calculate-per-token-loss"
    " model.gradient-accumulation-fusion dataset.seed config."
    " optimizer.main-grads-dtype optimizer.main-params-dtype"
    " optimizer.exp-avg-dtype optimizer.exp-avg-sq-dtype mixed-precision."
    " model.vocab-size model.should-pad-vocab model.make-vocab dataset.dataloader"
    " model.init config-file train.eval from-hf-pretrained."
    " optimizer.use-precision-aware-optimizer model.offload-modules"
    " model.moe-router-padding dataset.random-seed"
)
"""Prefixes of settings that change neither time nor memory."""


_PARTS: Final = names("comm-overlap peft model tokenizer dataset ddp optimizer train")
"""Sections that a file may replace as a whole."""


def _megatron_text(value: str) -> str:
    """Megatron-LM's text of a Python dtype or bool (``True``: ``true``); other values unchanged."""
    return {
        "torch.float32": "fp32",
        "torch.bfloat16": "bf16",
        "True": "true",
        "False": "false",
    }.get(value, value)


def _base_settings(recipe: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) that a recipe or the common part sets; DataError if it is unknown.

    Raises:
        DataError: the recipe is unknown.
    """
    function = recipe.rpartition(".")[2]
    if function in _COMMON:
        yield from _COMMON[function].items()
        return
    short = function.removesuffix("_config")
    matching = [name for name in RECIPES if short in (name, _SUFFIX.sub("", name))]
    if len(matching) != 1:
        raise DataError(
            f"Megatron-Bridge's recipe {recipe[:60]} is not known here"
            if not matching
            else f"{recipe[:60]} is one of {', '.join(matching)[:120]}",
            hint="the file of the recipe, with --set recipe=NAME",
        )
    for name, value in zip(FIELDS, RECIPES[matching[0]].split(), strict=True):
        if name == "model.sequence-parallel":
            yield name, "true" if value == "1" else "false"
        elif value not in ("0", "none"):
            yield name, value


def _verdicts(arguments: Arguments, launch: Launch, base: Arguments) -> Iterator[LaunchSetting]:
    """Yield a verdict on each setting: recipe, adapters, the launch's own verdict, or ignored."""
    inner = {setting.name: setting for setting in launch.settings if setting.name not in base}
    for name, value in arguments.items():
        if name == RECIPE:
            yield LaunchSetting(
                name=name,
                value=value,
                verdict=Verdict.UNDERSTOOD,
                means="the numbers of the recipe",
            )
        elif name in inner:
            yield replace(inner[name], value=value)
        elif name.startswith("peft.dim") or name == "peft.target-modules":
            yield LaunchSetting(
                name=name, value=value, verdict=Verdict.UNDERSTOOD, means="adapters"
            )
        else:
            yield LaunchSetting(
                name=name, value=value, verdict=Verdict.IGNORED, means="changes nothing here"
            )
    yield from (verdict for name, verdict in inner.items() if name not in arguments)
