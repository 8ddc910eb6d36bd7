"""Reader of ms-swift's ``swift sft`` and ``swift pt``, and its ``megatron sft`` and ``pt``.

Source of names and defaults: ms-swift 4.3, docs/source_en/Instruction/Command-line-parameters.md,
docs/source_en/Megatron-SWIFT/Command-line-parameters.md and swift/config
(https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_detection import FileKind, Signature
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
    default_notes,
)
from shardwright.frameworks.megatron.argument_names_of_core_fields import attention_backend
from shardwright.frameworks.megatron.read import USUAL_RUNTIME, Dialect, read_arguments
from shardwright.frameworks.settings.refuse_unpriced_settings import (
    OPTIMIZER,
    refusals,
    refuse,
    refused,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    name_set,
)
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import FSDP
from shardwright.frameworks.transformers.read import normalize_dtypes
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import (
    TrainerNames,
    files_of,
    read_trainer,
    settings_if_supported,
)
from shardwright.model.ir.model_graph import Model

_STAGE: Final = "zero-optimization.stage"
_OPTIMIZER: Final = "zero-optimization.offload-optimizer.device"
_PARAMETERS: Final = "zero-optimization.offload-param.device"
_OFF: Final = {"zero-optimization.overlap-comm": "false"}
DEEPSPEED_FILES: Final = MappingProxyType(
    {
        **{f"zero{stage}": {_STAGE: str(stage), **_OFF} for stage in range(4)},
        "zero2_offload": {_STAGE: "2", _OPTIMIZER: "cpu", **_OFF},
        "zero3_offload": {_STAGE: "3", _OPTIMIZER: "cpu", _PARAMETERS: "cpu", **_OFF},
    }
)
"""The settings behind each value of ``--deepspeed`` (swift/config)."""
_VERBS: Final = ("sft", "pt", "rlhf")
_WANTED: Final = 16
"""Samples of a step that the framework accumulates where the number of microbatches is not set."""
DOCS: Final = "https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html"
_UNPADDED: Final = "batches without padding, of which the command does not say how full they are"


def _normalize(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Complete ms-swift's settings in place: formats, FSDP 2, microbatches, LoRA; return notes."""
    notes = (
        []
        if "weights" in settings
        else [f"assumed: torch_dtype bfloat16, as the model's config.json has it ({DOCS})"]
    )
    settings.setdefault("weights", "bf16")
    normalize_dtypes(settings, devices)
    # The number format of products follows from that of the weights
    # (arguments/base_args/model_args.py, _init_torch_dtype).
    if not {"bf16", "fp16"} & settings.keys():
        settings["fp16" if settings["weights"] in ("fp16", "fp32") else "bf16"] = "true"
    if settings.get("fsdp", "").strip() == "fsdp2":
        settings |= {
            "fsdp": "full_shard auto_wrap",
            "fsdp.activation-checkpointing": "true",
            "gradient-checkpointing": "false",
        }
    if "ulysses" in settings:
        devices //= max(count(settings, "ulysses"), 1)
    if "gradient-accumulation-steps" not in settings:
        micro = max(count(settings, "per-device-train-batch-size", 1) * devices, 1)
        settings["gradient-accumulation-steps"] = str(max(-(-_WANTED // micro), 1))
        notes.append(
            f"assumed: gradient_accumulation_steps {settings['gradient-accumulation-steps']},"
            f" for at least {_WANTED} samples a step ({DOCS})"
        )
    if settings["tuner-type"] == "lora":
        settings.setdefault("lora-rank", "8")
    else:
        settings.pop("lora-rank", None)
    return tuple(notes)


_OF_BOTH: Final = refusals(
    {
        "a loss of preferences or rewards": "rlhf-type",
        "training a part of the parameters": (
            "freeze-parameters freeze-parameters-ratio trainable-parameters"
        ),
        "adapters by a pattern": "target-regex",
        "training without the language model": "freeze-llm",
    }
)
"""Refusals of ``swift`` and of ``megatron``."""
_TRAINER: Final = TrainerNames(
    framework="ms-swift",
    renamed=MappingProxyType(
        {
            "max-length": "seq-len",
            "train-type": "tuner-type",
            "sft-type": "tuner-type",
            "target-modules": "lora-target",
            "attn-impl": "attention",
            "sequence-parallel-size": "ulysses",
            "deepspeed-autotp-size": "tensor-parallel",
        }
    ),
    defaults=MappingProxyType(
        {
            "tuner-type": "lora",
            "per-device-train-batch-size": "1",
            "gradient-checkpointing": "true",
        }
    ),
    source=DOCS,
    programs=MappingProxyType({"rlhf": "a loss of preferences or rewards (swift rlhf)"}),
    deepspeed_files=DEEPSPEED_FILES,
    refused=MappingProxyType(
        {
            **_OF_BOTH,
            **refusals(
                {
                    "a model whose frozen weights are quantised (QLoRA)": "quant-bits quant-method",
                    "GaLore's optimizer": "use-galore",
                    "an optimizer of the framework's own": "optimizer",
                    "LISA's training of some layers": "lisa-activated-layers",
                    "adapters on parameters of experts": "target-parameters",
                    _UNPADDED: "padding-free",
                    "ZeRO++'s shards inside a node": "zero-hpz-partition-size",
                    "layers on several devices without a pipeline": "device-map",
                }
            ),
            **dict.fromkeys(
                ("tuner-type", "train-type", "sft-type"),
                refused("this kind of tuning", "lora", "full"),
            ),
            "attn-impl": refused(
                "an attention kernel that is not fused, or FlexAttention",
                "flash_attn",
                "flash_attention_2",
                "flash_attention_3",
                "sdpa",
            ),
            "task-type": refused("a loss other than of the next token", "causal_lm"),
        }
    ),
    ignored=by_name(
        {
            "data": (
                "dataset val-dataset split-dataset-ratio load-from-cache-file template system"
                " columns strict custom-* model-author model-name truncation-strategy"
                " lazy-tokenize use-hf packing-* loss-scale max-model-len agent-template"
                " cached-dataset streaming dataset-num-proc add-version model-kwargs"
                " response-prefix norm-bbox enable-thinking max-pixels"
            ),
            "the model, which MODEL says": (
                "model model-type model-revision task-type rope-scaling adapters freeze-vit"
                " freeze-aligner new-special-tokens"
            ),
            "how fast is learnt": "vit-lr aligner-lr lora-bias lorap-lr-ratio init-weights",
            "what is saved and logged": (
                "create-checkpoint-symlink swanlab-* use-logits-to-keep check-model"
            ),
            "how it starts": "ddp-* acc-strategy ignore-args-error use-ray",
        }
    ),
    settled=_normalize,
)
_CORE: Final = Dialect(
    framework="ms-swift",
    arguments_of=lambda name, value: _megatron_arguments(name, value),
    defaults=MappingProxyType(
        {
            "attention-dropout": "0",
            "hidden-dropout": "0",
            "bf16": "true",
            "use-distributed-optimizer": "true",
            "micro-batch-size": "1",
            "global-batch-size": "16",
            "recompute-granularity": "selective",
            "attention-backend": "flash",
            "cross-entropy-loss-fusion": "true",
            "expert-tensor-parallel-size": "1",
            "moe-token-dispatcher-type": "alltoall",
        }
    ),
)
_CORE_REST: Final = name_set(
    "model model-type dataset val-dataset split-dataset-ratio"
    " load-from-cache-file save-safetensors packing num-train-epochs"
    " max-epochs output-dir eval-steps save-steps logging-steps"
    " dataloader-num-workers dataset-num-proc system model-author model-name"
    " template truncation-strategy streaming cached-dataset train-iters"
    " eval-iters save-total-limit load-safetensors mcore-model add-version"
    " use-hf max-model-len custom-dataset-info loss-scale packing-length"
    " packing-num-proc freeze-vit freeze-aligner tuner-type train-type"
    " target-modules lora-rank lora-alpha lora-dropout merge-lora"
    " agent-template columns shuffle-buffer-size lazy-tokenize model-kwargs"
    " enable-thinking report-to padding-free strict"
    " dataloader-persistent-workers dataloader-prefetch-factor group-by-length"
    " dataset-shuffle train-dataloader-shuffle metric-for-best-model load-args"
    " torch-dtype lr-warmup-fraction create-checkpoint-symlink"
    " cached-val-dataset rope-scaling gradient-accumulation-fusion"
    " vit-gradient-checkpointing initialize-embedding new-special-tokens"
    " save-interval eval-interval log-interval save ddp-timeout"
)
"""ms-swift's own settings of ``megatron sft`` that change neither time nor memory."""


def _megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Megatron-LM's (argument, value) of a ``megatron sft`` setting; () if ignored, never None."""
    if name == "max-length":
        return (("seq-length", value),)
    if name == "virtual-pipeline-model-parallel-size":
        return (("num-virtual-stages-per-pipeline-rank", value),)
    if name == "cross-entropy-loss-fusion" and value.lower() == "true":
        return (("cross-entropy-loss-fusion", "true"),)
    if name == "attention-backend":
        return attention_backend(value)
    if name == "overlap-p2p-comm":
        return (("no-overlap-p2p-communication", str(value.lower() == "false").lower()),)
    if name in _CORE_REST:
        return ()
    return ((name, "true" if value == "True" else "false" if value == "False" else value),)


_CORE_REFUSED: Final = MappingProxyType(
    {
        **_OF_BOTH,
        **refusals(
            {
                "Muon's optimizer": "muon",
                "training whole modules beside adapters": "modules-to-save",
                "context parallelism that follows the data": "sequence-packing-scheduler",
            }
        ),
        **dict.fromkeys(
            ("tuner-type", "train-type"), refused("this kind of tuning", "lora", "full")
        ),
        "optimizer": OPTIMIZER,
        "task-type": refused("a loss other than of the next token", "causal_lm"),
    }
)


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.COMMAND}),
    programs=frozenset(
        {
            *(f"{word} {verb}" for word in ("swift", "megatron") for verb in _VERBS),
            *(f"swift/cli/{verb}.py" for verb in _VERBS),
            *(f"swift/cli/_megatron/{verb}.py" for verb in _VERBS),
        }
    ),
    files=files_of("", "config", own=DEEPSPEED_FILES),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert ms-swift's settings to a launch, of Megatron-Core if its program is ``megatron``."""
    if "megatron" not in file_settings.program:
        return read_trainer(_TRAINER, file_settings, model=model, devices=devices, runtime=runtime)
    if file_settings.program.endswith(("rlhf", "rlhf.py")):
        raise DataError(
            f"{file_settings.program[:40]}: a loss of preferences or rewards is not priced here",
            hint="megatron sft and megatron pt are",
        )
    refuse(file_settings.arguments, _CORE_REFUSED)
    settings = dict(file_settings.arguments)
    core_runtime = USUAL_RUNTIME if runtime in ("", FSDP) else runtime
    launch = read_arguments(
        _CORE, file_settings, model=model, devices=devices, runtime=core_runtime
    )
    unset = {
        name: value
        for name, value in _CORE.defaults.items()
        if name not in settings and name not in _QUIET
    }
    notes = default_notes(unset, DOCS, files="the command does")
    kind = settings.get(
        "tuner-type", settings.get("train-type", "lora" if "lora-rank" in settings else "full")
    )
    adapters = adapters_of(
        settings.get("lora-rank", "8") if kind == "lora" else "",
        settings.get("target-modules", "all"),
        model,
    )
    return replace(launch, train=adapters.train, notes=(*launch.notes, *notes, *adapters.notes))


_QUIET: Final = ("attention-dropout", "hidden-dropout")
"""Defaults that describe the model."""
MS_SWIFT: Final = LaunchReader(
    name="ms-swift",
    runtime=FSDP,
    target="megatron",
    includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer", "megatron"}),
    signature=SIGNATURE,
    read=_read,
    settings_of=partial(settings_if_supported, _TRAINER),
    own_name=lambda name: name.replace("-", "_"),
)
