"""Reader of NeMo 2's Python recipes, and of files that define recipes of their own.

A file calls ``llm.llama3_8b.pretrain_recipe(...)`` and overrides its settings.

Source of names and of the recipes' numbers: NeMo 2.5, nemo/collections/llm/recipes
(https://github.com/NVIDIA/NeMo/tree/v2.5.0/nemo/collections/llm/recipes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.launched_recipe_function import RECIPE
from shardwright.frameworks.launch.framework_detection import (
    NO_CLAIM,
    Claim,
    Document,
    FileKind,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch import FileSettings, Launch, LaunchReader
from shardwright.frameworks.megatron.read import Dialect, read_arguments
from shardwright.frameworks.nemo.read import megatron_arguments
from shardwright.frameworks.settings.name_lists import name_set, names
from shardwright.frameworks.settings.unpriced_settings import refusals, refuse, refused
from shardwright.frameworks.settings.value_conversion import count
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import Arguments

DOCS: Final = "https://github.com/NVIDIA/NeMo/tree/v2.5.0/nemo/collections/llm/recipes"
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
_SECTIONS: Final = MappingProxyType(
    {
        "megatronstrategy.": "trainer.strategy.",
        "distributeddataparallelconfig.": "ddp.",
        "trainer.strategy.ddp.": "ddp.",
        "optimizerconfig.": "optim.config.",
        "megatronmixedprecision.": "plugins.",
        "trainer.plugins.": "plugins.",
        "megatroncommoverlapcallback.": "overlap.",
        "model.config.": "model.",
    }
)
"""Equivalent prefixes of names -> the canonical prefix."""
_TRAINERS: Final = MappingProxyType(
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
_TRAINER: Final = MappingProxyType(
    {f"{trainer}.{name}": field for trainer in _TRAINERS for name, field in _ARGUMENTS.items()}
)
_SWITCHES: Final = MappingProxyType(
    {
        "ddp.overlap-grad-reduce": "overlap-grad-reduce",
        "ddp.overlap-param-gather": "overlap-param-gather",
        "ddp.use-distributed-optimizer": "use-distributed-optimizer",
        "ddp.grad-reduce-in-fp32": "grad-reduce-in-fp32",
        "plugins.grad-reduce-in-fp32": "grad-reduce-in-fp32",
        "plugins.fp8-param-gather": "fp8-param-gather",
        "optim.config.use-distributed-optimizer": "use-distributed-optimizer",
        "overlap.tp-comm-overlap": "tp-comm-overlap",
        "overlap.overlap-grad-reduce": "overlap-grad-reduce",
        "overlap.overlap-param-gather": "overlap-param-gather",
    }
)
"""Canonical name -> Megatron-LM's switch."""
_SHARED: Final = tuple(f"{trainer}." for trainer in _TRAINERS)
_REST: Final = (
    *(
        "trainer.",
        "log.",
        "resume.",
        "optim.",
        "tensorboard-logger.",
        "default-log.",
        "default-resume.",
        "fn.",
        "pretrain-recipe.",
    ),
    *(
        "autoresume.",
        "checkpoint",
        "ddp.",
        "plugins.",
        "overlap.",
        "distributed-fused-adam-with-cosine-annealing.",
        "nemologger.",
    ),
    *(
        "garbagecollectioncallback.",
        "timingcallback.",
        "localexecutor.",
        "slurmexecutor.",
        "slurm-executor.",
        "experiment.",
        "exp.",
        "add.",
    ),
    *(
        "main.",
        "run.",
        "packager.",
        "modelcheckpoint.",
        "cosineannealingscheduler.",
        "timedelta.",
        "deepseekmodel.",
        "timingcallback",
        "garbagecollectioncallback",
        *_SHARED,
        "megatronoptimizermodule.",
        "autotokenizer.",
    ),
    *(
        "get-nmt-tokenizer.",
        "wandblogger.",
        "tensorboardlogger.",
        "finetune-recipe.",
        "data.",
        "llamamodel.",
        "mixtralmodel.",
        "model.tokenizer",
    ),
    *(
        "lora.",
        "peft.",
        "finetuning-recipe.",
        "nsysplugin.",
        "memoryprofileplugin.",
        "perfenvplugin.",
        "faulttoleranceplugin.",
    ),
)
"""Prefixes of settings that change neither time nor memory."""
_DATA: Final = frozenset({"seq-length", "global-batch-size", "micro-batch-size"})
_REFUSED: Final = MappingProxyType(
    {
        **refusals(
            {
                "the recipe's own settings of performance_mode": "pretrain-recipe.performance-mode",
                "attention in 8 bits": "model.config.fp8-dot-product-attention",
                "adapters whose collectives are exchanges": "lora.a2a-experimental",
            }
        ),
        "trainer.strategy.fsdp": refused("FSDP of NeMo", "none"),
        "megatronstrategy.fsdp": refused("FSDP of NeMo", "none"),
        "trainer.accumulate-grad-batches": refused("accumulation outside of the global batch", "1"),
    }
)


def canonical_name(name: str) -> str:
    """Canonical name of a setting that has several prefixes, such as ``megatronstrategy.``."""
    section, _, rest = name.partition(".")
    if section.endswith("datamodule") and rest:
        return f"data.{rest}"
    start = max((section for section in _SECTIONS if name.startswith(section)), key=len, default="")
    return _SECTIONS[start] + name.removeprefix(start) if start else name


def recipe_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Rename a setting of a recipe to Megatron-LM's arguments; None if it is unknown."""
    if name in FIELDS:
        return megatron_arguments(f"model.{name}", value)
    if name in _TRAINER:
        return megatron_arguments(f"model.{_TRAINER[name]}", value)
    named = canonical_name(name)
    if named in _SWITCHES:
        return ((_SWITCHES[named], value),)
    if named in ("trainer.plugins", "plugins.precision"):
        half = (("fp16" if value.startswith("fp16") or value == "16-mixed" else "bf16", "true"),)
        return (*half, ("fp8-format", "hybrid")) if "fp8" in value else half
    if named == "deepepcallback":
        return ("moe-token-dispatcher-type", "flex"), ("moe-enable-deepep", "true")
    if (
        named.startswith("optim.config.")
        and named.removeprefix("optim.config.") in _PRECISION_AWARE
    ):
        return (
            (
                named.removeprefix("optim.config."),
                {"torch.bfloat16": "bf16", "torch.float32": "fp32"}.get(value, value),
            ),
        )
    if named == "optim.config.optimizer":
        return (("optimizer", value),)
    if named == "plugins.fp8":
        return (("fp8-format", value),)
    if named.startswith("data.") and named.removeprefix("data.") not in _DATA:
        return ()
    if named.startswith("data."):
        return ((named.removeprefix("data."), value),)
    if named.startswith(("trainer.strategy.", "model.")):
        short = named.rpartition(".")[2]
        return megatron_arguments(f"model.{short}", value) if short not in _HELD else ()
    if name == RECIPE or name.startswith(_REST) or named.startswith(_REST):
        return ()
    return None


_PRECISION_AWARE: Final = name_set(
    "use-precision-aware-optimizer exp-avg-dtype exp-avg-sq-dtype"
    " main-grads-dtype main-params-dtype"
)
"""Fields of the optimizer that set the dtypes of the optimizer states."""
_HELD: Final = name_set(
    "gradient-as-bucket-view ckpt-async-save ckpt-parallel-load ckpt-parallel-save"
    " ddp pipeline-dtype fsdp config ckpt-load-optimizer ckpt-save-optimizer"
    " ckpt-load-strictness progress-interval save-ckpt-format tokenizer"
    " replace-progress-bar ckpt-load-directly-on-device use-te-rng-tracker"
    " ckpt-include-optimizer account-for-none bias-activation-fusion"
    " deallocate-pipeline-outputs masked-softmax-fusion"
    " gradient-accumulation-fusion apply-rope-fusion bias-dropout-fusion vocab-size"
    " enable-cuda-graph disable-parameter-transpose-cache"
)
"""Fields of the strategy and of models that change neither time nor memory."""
_CORE: Final = Dialect(
    framework="nemo-recipe",
    arguments_of=recipe_arguments,
    defaults=MappingProxyType(
        {
            "attention-dropout": "0",
            "hidden-dropout": "0",
            "moe-token-dispatcher-type": "alltoall",
            "bf16": "true",
            "use-distributed-optimizer": "true",
            "overlap-grad-reduce": "true",
            "overlap-param-gather": "true",
        }
    ),
    own_defaults=True,
)


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.PYTHON}),
    own=frozenset(
        {"megatronstrategy.*", "mockdatamodule.*", "pretrain-recipe.*", "finetune-recipe.*"}
        | set(_TRAINER)
    ),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert a NeMo 2 recipe's settings, over the framework's own recipe, to a launch."""
    settings = file_settings.arguments
    refuse(settings, _REFUSED)
    base = {**_trainer_defaults(settings), **dict(_base_settings(settings))}
    named = dict.fromkeys(name for key in settings for name, _ in recipe_arguments(key, "1") or ())
    missing = [name for name in FIELDS[:2] if name not in named and name not in base]
    if missing or "global-batch-size" not in {**named, **base}:
        raise DataError(
            "the file does not say the degrees or the batch of the recipe",
            hint="the file of the recipe, or --set recipe=NAME of it",
        )
    launch = read_arguments(
        _CORE,
        replace(file_settings, arguments={**base, **settings}),
        model=model,
        devices=devices,
        runtime=runtime,
    )
    rank = settings.get("lora.dim", settings.get("peft.dim", ""))
    adapters = adapters_of(rank, settings.get("lora.target-modules", "all"), model)
    launch_settings = tuple(setting for setting in launch.settings if setting.name not in base)
    notes = (*_notes(settings, base, devices), *adapters.notes)
    return replace(
        launch, settings=launch_settings, train=adapters.train, notes=(*launch.notes, *notes)
    )


def _evidence(signature: Signature, document: Document) -> Claim:
    """Claim a file with a recipe's settings, or one that starts from a NeMo recipe."""
    claim = claim_of(signature, document)
    begun = document.kind is FileKind.PYTHON and document.settings.get(RECIPE, "").endswith(
        "_recipe"
    )
    return (
        replace(claim, own=(*claim.own, RECIPE)) if begun else claim if claim.evidence else NO_CLAIM
    )


NEMO_RECIPE: Final = LaunchReader(
    name="nemo-recipe",
    runtime="nemo-25.04",
    includes=frozenset({"nemo"}),
    signature=SIGNATURE,
    read=_read,
    own_name=lambda name: name.replace("-", "_"),
    evidence=_evidence,
)


def _base_settings(settings: Arguments) -> Iterator[tuple[str, str]]:
    """Settings of the framework's own recipe from which a file starts.

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


def _trainer_defaults(settings: Arguments) -> Arguments:
    """Defaults of the shared trainer function that the recipe does not set itself."""
    used = [
        trainer
        for trainer in _TRAINERS
        if any(f"{trainer}.{name}" in settings for name in _ARGUMENTS)
    ]
    named = {field for key, field in _TRAINER.items() if key in settings} | {
        key.rpartition(".")[2] for key in settings if "strategy." in key
    }
    return {
        name: value
        for trainer in used
        for name, value in _TRAINERS[trainer].items()
        if name not in named
    }


def _notes(settings: Arguments, base: Arguments, devices: int) -> Iterator[str]:
    """Notes on the settings of the base recipe, and on a number of devices unlike the cluster's."""
    if base:
        named = ", ".join(f"{name} {value}" for name, value in base.items())
        yield (
            f"{settings.get(RECIPE, 'the trainer')}: {named} where the file does not set them"
            f" ({DOCS})"
        )
    for start in ("pretrain-recipe.", "trainer."):
        nodes = (
            count(settings, f"{start}num-nodes", 1)
            if settings.get(f"{start}num-nodes", "").isdigit()
            else 0
        )
        each = settings.get(f"{start}num-gpus-per-node", settings.get(f"{start}devices", ""))
        if nodes and each.isdigit() and nodes * int(each) != devices:
            yield f"the file is for {nodes * int(each)} devices, the cluster has {devices}"
            return
