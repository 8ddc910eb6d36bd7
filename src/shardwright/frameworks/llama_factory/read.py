"""Reader of LLaMA-Factory's YAML and arguments.

Source of names and defaults: LLaMA-Factory 0.9.4, src/llamafactory/hparams/ (data_args.py,
finetuning_args.py, model_args.py), model/model_utils/checkpointing.py, model/adapter.py and
examples/deepspeed (https://llamafactory.readthedocs.io/en/latest/advanced/arguments.html).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.build_launch import replicas
from shardwright.frameworks.launch.framework_detection import FileKind, Signature
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.megatron.read import USUAL_RUNTIME, Dialect, read_arguments
from shardwright.frameworks.settings.refuse_unpriced_settings import refusals, refuse, refused
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    entry_of,
    name_set,
)
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import FSDP, is_on
from shardwright.frameworks.transformers.read import normalize_dtypes
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import (
    REPLICAS_ALONE,
    TrainerNames,
    files_of,
    read_trainer,
    settings_if_supported,
)
from shardwright.frameworks.transformers.settings import IGNORED
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments

_STAGE: Final = "zero-optimization.stage"
_OVERLAP: Final = "zero-optimization.overlap-comm"
_OPTIMIZER: Final = "zero-optimization.offload-optimizer.device"
_PARAMETERS: Final = "zero-optimization.offload-param.device"
DEEPSPEED_FILES: Final = MappingProxyType(
    {
        "ds_z0_config.json": {_STAGE: "0", _OVERLAP: "false"},
        "ds_z2_config.json": {_STAGE: "2", _OVERLAP: "false"},
        "ds_z2_autotp_config.json": {_STAGE: "2", _OVERLAP: "false", "tensor-parallel": "2"},
        "ds_z2_offload_config.json": {_STAGE: "2", _OVERLAP: "false", _OPTIMIZER: "cpu"},
        "ds_z3_config.json": {_STAGE: "3", _OVERLAP: "false"},
        "ds_z3_offload_config.json": {
            _STAGE: "3",
            _OVERLAP: "false",
            _OPTIMIZER: "cpu",
            _PARAMETERS: "cpu",
        },
    }
)
"""The settings in the framework's own DeepSpeed files (examples/deepspeed), by file name."""
_ATTENTION: Final = ("auto", "fa2", "fa3", "sdpa", "flash_attn")


def _normalize(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Complete LLaMA-Factory's settings in place (dtypes, recompute, packing, rank); give notes."""
    normalize_dtypes(settings, devices)
    if is_on(settings, "disable-gradient-checkpointing"):
        settings["gradient-checkpointing"] = "false"
    if is_on(settings, "pure-bf16"):
        settings["weights"], settings["bf16"] = "bf16", "false"
    if settings.get("stage", "sft") == "pt":
        settings.setdefault("packing", "true")
    if is_on(settings, "neat-packing"):
        settings["packing"] = "true"
    if settings["finetuning-type"] == "lora":
        settings.setdefault("lora-rank", "8")
        if not {"bf16", "fp16", "pure-bf16"} & settings.keys():
            # Without a flag products have the dtype of the model's weights (model/patcher.py,
            # patch_config).
            settings["bf16"] = "true"
            return ("assumed: bf16, the dtype of the weights, as neither bf16 nor fp16 is set",)
    else:
        settings.pop("lora-rank", None)
    return ()


_SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.YAML, FileKind.JSON, FileKind.COMMAND}),
    programs=frozenset(
        {"llamafactory-cli train", "lmf train", "llamafactory.cli", "llamafactory/launcher.py"}
    ),
    own=name_set(
        "finetuning-type cutoff-len pure-bf16 neat-packing lora-target pref-loss"
        " enable-liger-kernel"
    ),
    files=files_of("", "fsdp-config", own=DEEPSPEED_FILES),
)
_TRAINER: Final = TrainerNames(
    framework="llama-factory",
    renamed=MappingProxyType(
        {
            "cutoff-len": "seq-len",
            "flash-attn": "attention",
            "enable-liger-kernel": "liger-loss",
        }
    ),
    defaults=MappingProxyType(
        {
            "finetuning-type": "lora",
            "seq-len": "2048",
            "per-device-train-batch-size": "8",
            "gradient-accumulation-steps": "1",
            "gradient-checkpointing": "true",
        }
    ),
    source="https://llamafactory.readthedocs.io/en/latest/advanced/arguments.html",
    deepspeed_files=DEEPSPEED_FILES,
    possible=REPLICAS_ALONE,
    own_names=MappingProxyType({"gradient-checkpointing": "!disable-gradient-checkpointing"}),
    understood=MappingProxyType(
        {
            "pure-bf16": "number format of the weights and of the optimizer's states",
            "disable-gradient-checkpointing": "recompute=none",
            "neat-packing": "samples are joined to the full length",
        }
    ),
    refused=MappingProxyType(
        {
            **refusals(
                {
                    "a model whose frozen weights are quantised (QLoRA)": "quantization-bit",
                    "GaLore's optimizer": "use-galore",
                    "APOLLO's optimizer": "use-apollo",
                    "BAdam's optimizer of a part of the layers": "use-badam",
                    "Adam-mini's optimizer states": "use-adam-mini",
                    "Muon's optimizer": "use-muon",
                    "training of added layers": "use-llama-pro",
                    "Unsloth's kernels": "use-unsloth",
                    "Unsloth's checkpoints in host memory": "use-unsloth-gc",
                    "shifted sparse attention": "shift-attn",
                    "mixture of depths": "mixture-of-depths",
                    "training whole modules beside adapters": "additional-target",
                    "KTransformers": "use-kt",
                    "HyperParallel": "use-hyper-parallel",
                    "a loss that reads a reference model": "use-asft-loss",
                    "gathers in 8 bits under Accelerate": "fp8-enable-fsdp-float8-all-gather",
                    "logits in 32 bits": "upcast-lmhead-output",
                    "LLaMA-Factory's files of version 1": "dist-config.* model-class",
                }
            ),
            "stage": refused("this stage, whose loss reads pairs or another model,", "sft", "pt"),
            "finetuning-type": refused("this kind of tuning", "lora", "full"),
            "flash-attn": refused(
                "an attention kernel that is not fused, or FlexAttention", *_ATTENTION
            ),
            "train-from-scratch": refused("a copy of the model in fp32", "true"),
        }
    ),
    ignored=by_name(
        {
            "data": (
                "template dataset dataset-dir eval-dataset media-dir max-samples mask-history"
                " train-on-prompt mix-strategy interleave-probs tokenized-path val-size"
                " buffer-size tool-format default-system preprocessing-batch-size"
                " ignore-pad-token-for-loss data-shared-file-system enable-thinking image-*"
                " video-* audio-* crop-to-patches disable-shuffling"
            ),
            "how fast is learnt": (
                "loraplus-* pissa-* create-new-adapter use-dft-loss use-eaft-loss moe-aux-loss-coef"
            ),
            "how it starts": (
                "ray-* use-ray resources-per-worker placement-strategy print-param-status"
                " use-v1-kernels"
            ),
            "of other stages": (
                "pref-* dpo-label-smoothing kto-* ref-model* reward-model* simpo-gamma"
            ),
            "the model, which MODEL says": (
                "adapter-name-or-path adapter-folder resize-vocab split-special-tokens"
                " rope-scaling freeze-vision-tower freeze-multi-modal-projector"
                " freeze-language-model infer-* use-reentrant-gc"
            ),
            "what is logged": (
                "use-swanlab swanlab-* compute-accuracy include-effective-tokens-per-second"
                " early-stopping-steps"
            ),
            "of FSDP's 8-bit products": "fp8-backend",
        }
    ),
    unmodelled=MappingProxyType(
        {
            "upcast-layernorm": "norms in 32 bits",
        }
    ),
    settled=_normalize,
)
_CORE_NAMES: Final = MappingProxyType(
    {
        "cutoff-len": "seq-length",
        "per-device-train-batch-size": "micro-batch-size",
        "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
        "overlap-p2p-comm": "",
        "bias-activation-fusion": "",
        "apply-rope-fusion": "",
        "moe-grouped-gemm": "moe-grouped-gemm",
    }
)
"""LLaMA-Factory's names of Megatron-Core's settings -> Megatron-LM's; empty = no effect."""
_CORE_REST: Final = dict.fromkeys(
    (
        *_TRAINER.ignored,
        *IGNORED,
        *_TRAINER.refused,
        "gradient-accumulation-steps",
        "lora-rank",
    ),
    True,
)


def _megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Megatron-LM's (argument, value) of a LLaMA-Factory setting; () if ignored, never None."""
    if name in _CORE_NAMES:
        return ((_CORE_NAMES[name], value),) if _CORE_NAMES[name] else ()
    if name == "mixed-precision":
        return (("fp16" if value.startswith("fp16") else "bf16", "true"),)
    if entry_of(name, _CORE_REST):
        return ()
    return ((name, value),)


def _completed_arguments(arguments: Arguments) -> Arguments:
    """Give full recompute without method and layers the method uniform in groups of one layer.

    Full recompute is of all layers (ROLL, mcore_adapter/models/model_config.py).
    """
    if arguments.get("recompute-granularity") == "full" and not arguments.keys() & {
        "recompute-method",
        "recompute-num-layers",
    }:
        return {**arguments, "recompute-method": "uniform", "recompute-num-layers": "1"}
    return arguments


_CORE: Final = Dialect(
    framework="llama-factory",
    arguments_of=_megatron_arguments,
    defaults=MappingProxyType(
        {"attention-dropout": "0", "hidden-dropout": "0", "moe-token-dispatcher-type": "alltoall"}
    ),
    completed=_completed_arguments,
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert LLaMA-Factory's settings to a launch, of Megatron-Core if tp, pp or mca is set."""
    settings = file_settings.arguments
    if (
        not {
            "tensor-model-parallel-size",
            "pipeline-model-parallel-size",
            "use-mca",
            "use-megatron-bridge",
        }
        & settings.keys()
    ):
        return read_trainer(_TRAINER, file_settings, model=model, devices=devices, runtime=runtime)
    refuse(settings, _TRAINER.refused)
    degrees = {
        short: count(settings, f"{name}-parallel-size", 1) for short, name in _DEGREES.items()
    }
    steps, micro = (
        count(settings, "gradient-accumulation-steps", 1),
        count(settings, "per-device-train-batch-size", 8),
    )
    batch = micro * steps * replicas(devices, **degrees)
    file_settings = replace(file_settings, arguments={**settings, "global-batch-size": str(batch)})
    core_runtime = (
        "megatron-bridge"
        if "use-megatron-bridge" in settings or "mixed-precision" in settings
        else USUAL_RUNTIME
    )
    launch = read_arguments(
        _CORE,
        file_settings,
        model=model,
        devices=devices,
        runtime=core_runtime if runtime in ("", FSDP) else runtime,
    )
    kind = settings.get("finetuning-type", "lora")
    adapters = adapters_of(
        settings.get("lora-rank", "8") if kind == "lora" else "",
        settings.get("lora-target", "all"),
        model,
    )
    launch_settings = tuple(
        setting for setting in launch.settings if setting.name != "global-batch-size"
    )
    notes = (
        f"{micro} samples x {steps} microbatches x the replicas are {batch} samples a step",
        *adapters.notes,
    )
    return replace(
        launch, settings=launch_settings, train=adapters.train, notes=(*launch.notes, *notes)
    )


_DEGREES: Final = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context"}
LLAMA_FACTORY: Final = LaunchReader(
    name="llama-factory",
    runtime=FSDP,
    target="megatron",
    includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer"}),
    signature=_SIGNATURE,
    read=_read,
    settings_of=partial(settings_if_supported, _TRAINER),
    own_name=lambda name: name.replace("-", "_"),
)
