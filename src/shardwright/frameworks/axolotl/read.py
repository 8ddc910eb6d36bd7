"""Reader of axolotl's YAML.

Source of names and defaults: axolotl 0.13, src/axolotl/utils/schemas/ (config.py, training.py,
peft.py, fsdp.py) and deepspeed_configs (https://docs.axolotl.ai/docs/config-reference.html).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_detection import FileKind, Signature
from shardwright.frameworks.settings.refuse_unpriced_settings import OFF, refusals, refused
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    name_set,
)
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import is_on
from shardwright.frameworks.transformers.read import normalize_dtypes
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import (
    TrainerNames,
    files_of,
    trainer_reader,
)
from shardwright.frameworks.transformers.settings import ATTENTION

_STAGE: Final = "zero-optimization.stage"
_OPTIMIZER: Final = "zero-optimization.offload-optimizer.device"
_PARAMETERS: Final = "zero-optimization.offload-param.device"
_ON: Final = {"zero-optimization.overlap-comm": "true"}
_COMPILED: Final = {"torch-compile": "true"}
DEEPSPEED_FILES: Final = MappingProxyType(
    {
        "zero1.json": {_STAGE: "1", **_ON},
        "zero1_torch_compile.json": {_STAGE: "1", **_ON, **_COMPILED},
        "zero2.json": {_STAGE: "2", _OPTIMIZER: "cpu", **_ON},
        "zero2_torch_compile.json": {_STAGE: "2", _OPTIMIZER: "cpu", **_ON, **_COMPILED},
        "zero3.json": {_STAGE: "3", **_ON},
        "zero3_bf16.json": {_STAGE: "3", **_ON},
        "zero3_bf16_cpuoffload_all.json": {
            _STAGE: "3",
            _OPTIMIZER: "cpu",
            _PARAMETERS: "cpu",
            **_ON,
        },
        "zero3_bf16_cpuoffload_params.json": {_STAGE: "3", _PARAMETERS: "cpu", **_ON},
    }
)
"""The settings in the framework's own DeepSpeed files (deepspeed_configs), by file name."""
_PLUGINS: Final = ("CutCrossEntropyPlugin", "LigerPlugin")
"""Plugins of kernels alone."""
_RINGS: Final = {
    "varlen_llama3": "allgather",
    "batch_ring": "ring",
    "batch_zigzag": "ring",
    "batch_stripe": "ring",
}


def _normalize(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Complete axolotl's settings in place: bf16 unless set, dtype of the weights; return notes."""
    normalize_dtypes(settings, devices)
    notes = []
    if not {"bf16", "fp16", "float32"} & settings.keys():
        settings["bf16"] = "true"
        notes.append(
            "assumed: bf16 auto, which is on where the device has it"
            " (https://docs.axolotl.ai/docs/config-reference.html)"
        )
    if settings.get("bf16", "").lower() in ("auto", "full"):
        settings["bf16"] = "true"
    if settings.get("fp16", "").lower() in ("auto", "full"):
        settings["fp16"] = "true"
    # The model is loaded in the dtype that it is trained in (utils/config/__init__.py,
    # normalize_config).
    settings["weights"] = next(
        (
            name
            for name in ("bf16", "fp16")
            if is_on(settings, name)
            or is_on(settings, name.replace("bf", "bfloat").replace("fp", "float"))
        ),
        "fp32",
    )
    if settings["weights"] != "fp32":
        settings[settings["weights"]] = "true"
    if settings.get("adapter", "").lower() in OFF:
        settings.pop("lora-rank", None)
    elif is_on(settings, "lora-target-linear"):
        settings["lora-target"] = "all"
    if "micro-batch-of-all" in settings:
        settings["train-batch-size"] = settings.pop("micro-batch-of-all")
    if "context-parallel" in settings and "context-method" not in settings:
        method = settings.get(
            "ring-attn-func", "varlen_llama3" if is_on(settings, "packing") else "batch_ring"
        )
        settings["context-method"] = _RINGS.get(method, "ring")
    for name in ("flash-attention", "sdp-attention"):
        settings.pop(name, None)
    plugins = settings.get("plugins", "").split()
    # A loss without its plugin is not called; Cut Cross-Entropy is on with its plugin alone
    # (integrations/cut_cross_entropy/args.py).
    for loss, plugin, alone in (
        ("liger-loss", "LigerPlugin", "false"),
        ("cut-loss", "CutCrossEntropyPlugin", "true"),
    ):
        if any(one.endswith(plugin) for one in plugins):
            settings.setdefault(loss, alone)
        elif is_on(settings, loss):
            settings[loss] = "false"
            notes.append(
                f"{loss.partition('-')[0]} cross-entropy is set without its plugin {plugin}, and"
                " has no effect"
            )
    unknown = [plugin for plugin in plugins if not plugin.endswith(_PLUGINS)]
    if unknown:
        raise DataError(
            f"plugins {' '.join(unknown)[:60]}: what they change is not priced here",
            hint="a launch without them",
        )
    return tuple(notes)


AXOLOTL: Final = trainer_reader(
    TrainerNames(
        framework="axolotl",
        renamed=MappingProxyType(
            {
                "sequence-len": "seq-len",
                "sample-packing": "packing",
                "micro-batch-size": "per-device-train-batch-size",
                "batch-size": "micro-batch-of-all",
                "optimizer": "optim",
                "lora-target-linear": "lora-target-linear",
                "context-parallel-size": "context-parallel",
                "sequence-parallel-degree": "context-parallel",
                "tensor-parallel-size": "tensor-parallel",
                "dp-replicate-size": "dp-replicate",
                "dp-shard-size": "dp-shard",
                "bfloat16": "bf16",
                "float16": "fp16",
                "liger-fused-linear-cross-entropy": "liger-loss",
                "cut-cross-entropy": "cut-loss",
            }
        ),
        defaults=MappingProxyType(
            {
                "per-device-train-batch-size": "1",
                "gradient-accumulation-steps": "1",
                "seq-len": "512",
                "packing": "false",
                "gradient-checkpointing": "false",
            }
        ),
        source="https://docs.axolotl.ai/docs/config-reference.html",
        deepspeed_files=DEEPSPEED_FILES,
        understood=MappingProxyType(
            {
                "lora-target-linear": "products with adapters",
                "batch-size": "samples of a step",
                "plugins": "whose kernels and losses run",
            }
        ),
        refused=MappingProxyType(
            {
                **refusals(
                    {
                        "a loss of preferences or rewards, which reads pairs or another model,": (
                            "rl"
                        ),
                        "a reward model's loss of pairs": "reward-model",
                        "a reward model": "process-reward-model",
                        "a model whose frozen weights are quantised": "gptq",
                        "experts whose frozen weights are quantised": "quantize-moe-experts",
                        "DoRA's norms of weights": "peft-use-dora",
                        "selective checkpointing": "selective-checkpointing",
                        "moving layers to host memory": "layer-offloading",
                        "training a part of the parameters": "unfrozen-parameters",
                        "feed-forwards in tiles": "tiled-mlp",
                        "an attention kernel that is not fused, or FlexAttention": (
                            "eager-attention"
                        ),
                        "xFormers' attention": "xformers-attention",
                        "FlexAttention": "flex-attention",
                        "ReLoRA": "relora",
                        "LISA's training of some layers": "lisa-n-layers",
                        "DeepCompile": "deepcompile",
                        "distillation": "kd-trainer",
                        "adapters on the host": "lora-on-cpu",
                        "PoSE's positions": "use-pose",
                        "products in 8 bits by torchao": "fp8",
                    }
                ),
                "adapter": refused("a model whose frozen weights have 4 bits (QLoRA)", "lora"),
                "gradient-checkpointing": refused(
                    "checkpoints in host memory", "true", "selective"
                ),
                "attn-implementation": refused(
                    "an attention kernel that is not fused, or FlexAttention", *ATTENTION
                ),
                "qat.*": refused("training with simulated quantisation", "no value"),
                "diffusion.*": refused("a diffusion model's loss", "no value"),
                "embeddings-skip-upcast": refused("embeddings in 16 bits", "true"),
                "expert-parallel-size": refused("expert parallelism of its plugin", "1"),
            }
        ),
        ignored=by_name(
            {
                "data": (
                    "datasets datasets.* test-datasets test-datasets.* pretraining-dataset*"
                    " chat-template* dataset-* val-set-size shuffle-* train-on-inputs"
                    " group-by-length eval-sample-packing pad-to-sequence-len sample-packing-*"
                    " special-tokens special-tokens.* tokens added-tokens-overrides* eot-tokens"
                    " default-system-message min-sample-len excess-length-strategy"
                    " skip-prepare-dataset roles-to-train eval-sequence-len multipack-real-batches"
                    " streaming* curriculum-sampling resize-token-embeddings-to-32x"
                    " mean-resizing-embeddings fix-untrained-tokens dataloader-*"
                ),
                "how long is trained, and how fast is learnt": (
                    "num-epochs lr-scheduler cosine-min-lr-ratio lr-groups loraplus-* adam-*"
                    " lora-fan-in-fan-out lora-model-dir peft-use-rslora peft-init-lora-weights"
                    " loss-watchdog-* early-stopping-patience"
                ),
                "what is logged, saved and evaluated": (
                    "evals-per-epoch saves-per-epoch wandb-* mlflow-* use-mlflow use-wandb "
                    "use-comet comet-* save-* xformers-* debug "
                    "use-tensorboard eval-* hf-use-auth-token push-dataset-to-hub "
                    "auto-resume-from-checkpoints use-otel-metrics otel-* "
                    "swanlab-* use-swanlab profiler-steps* gc-steps"
                ),
                "the model, which MODEL says": (
                    "base-model base-model-config tokenizer-* processor-type is-*-derived-model"
                    " overrides-of-model-config.* cls-model-config model-config.* rope-scaling"
                    " trust-remote-code revision-of-model"
                ),
                "how it starts": (
                    "world-size local-rank strict device device-map ddp use-ray ray-*"
                    " resources-per-worker low-cpu-mem-usage seed"
                ),
                "how attention is called, as the planner has it": (
                    "flash-attention sdp-attention flash-attn-* ring-attn-func heads-k-stride"
                    " s2-attention"
                ),
                "how products are quantised": "load-in-8bit load-in-4bit bnb-config-kwargs*",
                "how it shards": (
                    "fsdp-version fsdp-final-state-dict-type fsdp-config.final-state-dict-type"
                ),
            }
        ),
        unmodelled=by_name(
            {
                "fused kernels of adapters": (
                    "lora-mlp-kernel lora-qkv-kernel lora-o-kernel lora-embedding-kernel"
                ),
                "Liger's fused kernels, which take less time and memory": (
                    "liger-rope liger-rms-norm liger-layer-norm liger-glu-activation liger-swiglu"
                    " liger-cross-entropy liger-rms-norm-gated liger-use-token-scaling"
                ),
                "a loss in parts, which takes less memory": "chunked-cross-entropy*",
                "routing of Unsloth's kind": "unsloth-*",
            }
        ),
        settled=_normalize,
    ),
    signature=Signature(
        kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
        programs=frozenset({"axolotl train", "axolotl.cli.train", "axolotl fetch"}),
        own=name_set(
            "base-model sequence-len sample-packing pad-to-sequence-len dataset-prepared-path"
            " val-set-size evals-per-epoch saves-per-epoch lora-target-linear special-tokens.*"
            " eval-sample-packing"
        ),
        files=files_of("", own=DEEPSPEED_FILES),
    ),
    includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer"}),
)
