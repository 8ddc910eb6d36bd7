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
from shardwright.frameworks.documents.find_launched_recipe_function import RECIPE
from shardwright.frameworks.launch.framework_detection import (
    NO_CLAIM,
    Claim,
    Document,
    FileKind,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.megatron.read import Dialect, read_arguments
from shardwright.frameworks.nemo.read import megatron_arguments
from shardwright.frameworks.nemo.recipe_defaults import (
    FIELDS,
    TRAINER_ARGUMENTS,
    TRAINERS,
    base_settings,
    trainer_defaults,
)
from shardwright.frameworks.settings.refuse_unpriced_settings import refusals, refuse, refused
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments

DOCS: Final = "https://github.com/NVIDIA/NeMo/tree/v2.5.0/nemo/collections/llm/recipes"
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
_SHARED: Final = tuple(f"{trainer}." for trainer in TRAINERS)
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
    """Setting's name with its section's alias replaced by the canonical one, or unchanged."""
    section, _, rest = name.partition(".")
    if section.endswith("datamodule") and rest:
        return f"data.{rest}"
    start = max((section for section in _SECTIONS if name.startswith(section)), key=len, default="")
    return _SECTIONS[start] + name.removeprefix(start) if start else name


def recipe_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Megatron-LM's (argument, value) of a recipe's setting; () if ignored, None if unknown."""
    if name in FIELDS:
        return megatron_arguments(f"model.{name}", value)
    if name in TRAINER_ARGUMENTS:
        return megatron_arguments(f"model.{TRAINER_ARGUMENTS[name]}", value)
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
        | set(TRAINER_ARGUMENTS)
    ),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert a NeMo 2 recipe's settings, over the framework's own recipe, to a launch."""
    settings = file_settings.arguments
    refuse(settings, _REFUSED)
    base = {**trainer_defaults(settings), **dict(base_settings(settings))}
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
