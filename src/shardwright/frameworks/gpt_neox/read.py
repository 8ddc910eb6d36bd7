"""Reader of GPT-NeoX's YAML: Megatron layers on DeepSpeed's pipeline.

Source of names and defaults: GPT-NeoX main of 2026-05, configs/neox_arguments.md and
megatron/neox_arguments
(https://github.com/EleutherAI/gpt-neox/blob/main/configs/neox_arguments.md).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.build_launch import replicas
from shardwright.frameworks.launch.compare_model_sizes_in_settings_with_model import compared_sizes
from shardwright.frameworks.launch.framework_detection import CONFIGURATIONS, FileKind, Signature
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
    default_notes,
)
from shardwright.frameworks.megatron.read import Dialect, read_arguments
from shardwright.frameworks.megatron_deepspeed.read import with_bf16_optimizer
from shardwright.frameworks.settings.refuse_unpriced_settings import (
    OFF,
    OPTIMIZER,
    refusals,
    refuse,
    refused,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.setting_verdicts import setting_verdicts
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    name_set,
)
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments

DOCS: Final = "https://github.com/EleutherAI/gpt-neox/blob/main/configs/neox_arguments.md"
_UNDERSTOOD: Final = MappingProxyType(
    {
        "pipe-parallel-size": "pp",
        "model-parallel-size": "tp",
        "sequence-parallel": "sp",
        "context-parallel-size": "cp",
        "train-micro-batch-size-per-gpu": "samples of a microbatch",
        "train-batch-size": "samples of a step",
        "gradient-accumulation-steps": "microbatches of a step",
        "seq-length": "tokens of a sample",
        "zero-optimization.stage": "stage of ZeRO",
        "zero-optimization.overlap-comm": "sets grad_overlap",
        "checkpoint-activations": "recompute=full",
        "attention-config": "sets attention",
        "precision": "number format",
        "fp16.enabled": "number format",
        "bf16.enabled": "number format",
        "fp16.type": "number format",
        "hidden-dropout": "dropout",
        "attention-dropout": "dropout",
        "scaled-upper-triang-masked-softmax-fusion": "sets kernels",
        "bias-gelu-fusion": "sets kernels",
        "optimizer.type": "states of the optimizer",
    }
)
_IGNORED: Final = by_name(
    {
        "how long is trained, and how fast is learnt": (
            "train-iters train-epochs lr-decay-iters lr-decay-style warmup min-lr "
            "optimizer.params.* gradient-clipping weight-decay "
            "lr-decay-fraction fp16.* bf16.* scheduler.* loss-scale*"
        ),
        "what is logged, saved and evaluated": (
            "checkpoint-factor checkpoint-scale extra-save-iters eval-interval eval-iters log-* "
            "steps-per-print keep-last-n-checkpoints "
            "wall-clock-breakdown tensorboard-dir wandb-* use-wandb save load "
            "checkpoint-validation-with-forward-pass finetune eval-tasks "
            "profile* s3-* comet-* use-comet tensorboard* memory-profiling*"
        ),
        "data": (
            "data-path data-impl split vocab-file merge-file tokenizer-type train-data-*"
            " valid-data-* test-data-* weight-by-num-documents weighted-sampler-alpha train-label-*"
            " valid-label-* test-label-* num-workers mmap-warmup pack-impl train-impl dataset-impl"
            " allow-chopped enforce-sample-length label-data-paths make-vocab-size-divisible-by"
            " reset-* eod-mask-loss"
        ),
        "the model, which MODEL says": (
            "hidden-size intermediate-size num-attention-heads num-kv-heads "
            "max-position-embeddings norm pos-emb rotary-* no-weight-tying "
            "gpt-j-residual gpt-j-tied output-layer-parallelism rms-norm-epsilon "
            "layernorm-epsilon use-bias-* activation mlp-multiple-of "
            "init-method output-layer-init-method hidden-act use-qk-layernorm mlp-type "
            "sliding-window-width moe-top-k moe-router-type "
            "num-unique-layers attention-head-dim rope-* expansion-factor"
        ),
        "how it starts": (
            "distributed-backend hostfile launcher deepspeed-* master-* include exclude num-gpus"
            " num-nodes detect-nvlink-pairs slurm-*"
        ),
        "how layers are checkpointed, as the planner has it": (
            "synchronize-each-layer contiguous-checkpointing"
        ),
        "follows from others": "zero-allow-untested-optimizer attention-softmax-in-fp32 gpt2-*",
    }
)
_UNMODELLED: Final = by_name(
    {
        "saved activations split over tp": "partition-activations",
        "fused kernels of GPT-NeoX": (
            "rope-fusion layernorm-fusion rmsnorm-fusion fp32-allreduce use-flashattn-swiglu"
        ),
        "sizes of buckets": (
            "zero-optimization.allgather-bucket-size zero-optimization.reduce-bucket-size"
            " zero-optimization.allgather-partitions zero-optimization.reduce-scatter"
            " zero-optimization.contiguous-gradients zero-optimization.round-robin-gradients"
            " zero-optimization.load-from-fp32-weights"
        ),
        "masks of attention that are made on the way": "scaled-masked-softmax-fusion",
    }
)
_REFUSED: Final = MappingProxyType(
    {
        **refusals(
            {
                "optimizer states in host memory by Adam's own setting": (
                    "optimizer.params.cpu-offload"
                ),
                "optimizer states in host memory under its pipeline": (
                    "zero-optimization.cpu-offload zero-optimization.offload-optimizer.device"
                ),
                "Transformer Engine's products in 8 bits": "te-fp8",
                "MAML": "maml-*",
                "a loss of preferences": "dpo-* kto-* neg-train-data-* pos-train-data-*",
                "lengths that grow": "curriculum-learning.enabled",
                "compressed gradients": "onebit*",
            }
        ),
        "moe-num-experts": refused("GPT-NeoX's experts", "1"),
        "mamba-*": refused("GPT-NeoX's state-space layers", "false"),
        "rwkv-*": refused("GPT-NeoX's RWKV layers", "false"),
        "optimizer.type": OPTIMIZER,
        "te-*": refused("Transformer Engine's layers", "false"),
        "checkpoint-num-layers": refused("checkpoints of several layers", "1"),
        "sparsity-config.*": refused("sparse attention", "no value"),
        "param-sharing-style": refused("parameters that layers share", "grouped"),
    }
)
_RENAMED: Final = MappingProxyType(
    {
        "pipe-parallel-size": "pipeline-model-parallel-size",
        "model-parallel-size": "tensor-model-parallel-size",
        "train-micro-batch-size-per-gpu": "micro-batch-size",
        "zero-optimization.stage": "zero-stage",
    }
)
_KEPT: Final = name_set(
    "seq-length sequence-parallel context-parallel-size hidden-dropout"
    " attention-dropout global-batch-size"
)
_CORE: Final = Dialect(
    framework="gpt-neox",
    defaults=MappingProxyType({"hidden-dropout": "0", "attention-dropout": "0"}),
    completed=with_bf16_optimizer,
    refuses=False,
)


SIGNATURE: Final = Signature(
    kinds=CONFIGURATIONS | {FileKind.COMMAND},
    own=name_set(
        "pipe-parallel-size model-parallel-size no-weight-tying gpt-j-residual"
        " output-layer-parallelism"
    ),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert GPT-NeoX's settings to a launch, by way of Megatron-DeepSpeed's arguments."""
    settings = file_settings.arguments
    refuse(settings, _REFUSED)
    if "train-micro-batch-size-per-gpu" not in settings and "train-batch-size" not in settings:
        raise DataError(
            "the launch does not say train_micro_batch_size_per_gpu",
            hint="the file of the model beside the others",
        )
    megatron = dict(_megatron_arguments(settings))
    tp, pp, cp = (max(count(megatron, f"{axis}-size", 1), 1) for axis in _AXES)
    megatron |= {"tensor-model-parallel-size": str(tp), "pipeline-model-parallel-size": str(pp)}
    dp = replicas(devices, tp=tp, pp=pp, cp=cp)
    batch, steps = (
        count(settings, "train-batch-size"),
        max(count(settings, "gradient-accumulation-steps", 1), 1),
    )
    micro = count(megatron, "micro-batch-size") or max(batch // (dp * steps), 1)
    megatron |= {
        "micro-batch-size": str(micro),
        "global-batch-size": str(batch or micro * steps * dp),
    }
    launch = read_arguments(
        _CORE,
        replace(file_settings, arguments=megatron),
        model=model,
        devices=devices,
        runtime=runtime,
    )
    understood = {
        **{name: "as it is priced" for name in settings if name in _REFUSED},
        **_UNDERSTOOD,
    }
    of_model = list(compared_sizes(settings, _SIZES, model))
    verdicts = setting_verdicts(
        settings, understood=understood, model=of_model, ignored=_IGNORED, unmodelled=_UNMODELLED
    )
    unset = {name: value for name, value in _DEFAULTS.items() if name not in settings}
    return replace(
        launch, settings=tuple(verdicts), notes=(*launch.notes, *default_notes(unset, DOCS))
    )


_DEFAULTS: Final = MappingProxyType(
    {
        "gradient-accumulation-steps": "1",
        "checkpoint-activations": "false",
        "hidden-dropout": "0",
        "attention-dropout": "0",
    }
)
"""The framework's defaults, used where no file sets them."""
_AXES: Final = ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")


def _megatron_arguments(settings: Arguments) -> list[tuple[str, str]]:
    """Megatron-DeepSpeed's (argument, value) pairs of GPT-NeoX's settings; others are left out."""
    arguments = [(_RENAMED[name], value) for name, value in settings.items() if name in _RENAMED]
    arguments += [(name, value) for name, value in settings.items() if name in _KEPT]
    kind = settings.get("precision", settings.get("fp16.type", "")).lower()
    half = (
        settings.get("fp16.enabled", "false") == "true"
        or settings.get("fp16.fp16", "false") == "true"
    )
    if kind in ("bfloat16", "bf16") or settings.get("bf16.enabled") == "true":
        arguments += [("bf16", "true"), ("bf16.enabled", "true")]
    elif kind == "fp16" or (half and kind != "fp32"):
        arguments.append(("fp16", "true"))
    if settings.get("checkpoint-activations") == "true":
        arguments.append(("checkpoint-activations", "true"))
    arguments += (
        [("use-flash-attn", "true")] if "flash" in settings.get("attention-config", "") else []
    )
    if (
        settings.get("scaled-upper-triang-masked-softmax-fusion", "false").lower() in OFF
        and settings.get("bias-gelu-fusion", "false").lower() in OFF
    ):
        arguments += [
            (f"no-{name}-fusion", "true")
            for name in ("masked-softmax", "bias-gelu", "bias-dropout")
        ]
    return arguments


_SIZES: Final = MappingProxyType(
    {
        "num-layers": "layers",
        "hidden-size": "width",
        "num-attention-heads": "heads",
        "num-kv-heads": "heads of keys",
    }
)
"""Setting -> name of the model's size."""
GPT_NEOX: Final = LaunchReader(
    name="gpt-neox",
    runtime="deepspeed-2022",
    includes=frozenset({"deepspeed"}),
    signature=SIGNATURE,
    read=_read,
)
