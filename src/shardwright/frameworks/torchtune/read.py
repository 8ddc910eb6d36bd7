"""Reader of torchtune's YAML, with overrides after ``tune run``.

Source of names and defaults: torchtune 0.6, recipes/full_finetune_distributed.py,
recipes/lora_finetune_distributed.py and recipes/configs
(https://docs.pytorch.org/torchtune/stable/deep_dives/configs.html). Parameters, gradients and
optimizer states have the file's dtype: FSDP is called without a mixed-precision policy
(torchtune/training/_distributed.py, shard_model).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.build_launch import NO_PIPELINE
from shardwright.frameworks.launch.framework_detection import FileKind, NamedFile, Signature
from shardwright.frameworks.launch.fused_losses import OF_LOSS
from shardwright.frameworks.settings.refuse_unpriced_settings import refusals, refused
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    name_set,
)
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import is_on
from shardwright.frameworks.transformers.read import normalize_dtypes
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import (
    TrainerNames,
    trainer_reader,
)

_OPTIMIZERS: Final = {
    "torch.optim.adamw": "adamw",
    "torch.optim.adam": "adamw",
    "bitsandbytes.optim.pagedadamw8bit": "adamw_8bit",
    "bitsandbytes.optim.adamw8bit": "adamw_8bit",
    "bitsandbytes.optim.pagedadamw": "adamw",
    "torchao.optim.adamw8bit": "adamw_8bit",
    "torchao.prototype.low_bit_optim.adamw8bit": "adamw_8bit",
}
_ATTENTION: Final = frozenset({"q_proj", "k_proj", "v_proj", "output_proj"})
_FEED_FORWARD: Final = ("gate_proj", "up_proj", "down_proj")
_IN_PARTS: Final = frozenset({"linearcrossentropyloss", "cewithchunkedoutputloss"})
"""Losses over chunks of a microbatch's tokens; with eight chunks, the first is an option of the
runtime."""
DOCS: Final = "https://docs.pytorch.org/torchtune/stable/deep_dives/configs.html"


def _normalize(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Complete torchtune's settings in place, by the components that a file names; return notes.

    Raises:
        DataError: a component is not priced, or the named configuration is not among the files.
    """
    normalize_dtypes(settings, devices)
    builder = settings.get("model.-component-", "").rpartition(".")[2]
    if not builder:
        raise DataError(
            f"the command names the configuration {settings.get('config', '')[:60]}, which is not"
            " among the files",
            hint="tune cp NAME FILE writes it; give it beside the command",
        )
    for word, what in (
        ("qlora", "a model whose frozen weights have 4 bits (QLoRA)"),
        ("dora", "DoRA's norms of weights"),
    ):
        if builder.startswith(word):
            raise DataError(
                f"model {builder[:60]}: {what} is not priced here",
                hint="a builder of the whole model, or of LoRA",
            )
    if builder.startswith("lora_"):
        settings.setdefault("lora-rank", "8")
        targets = settings.get("model.lora-attn-modules", "q_proj v_proj").replace(",", " ").split()
        named = {word.strip("[]'\" ") for word in targets} & _ATTENTION
        settings["lora-target"] = " ".join(
            (*sorted(named), *(_FEED_FORWARD if is_on(settings, "model.apply-lora-to-mlp") else ()))
        )
    else:
        settings.pop("lora-rank", None)
    optimizer = settings.get("optimizer.-component-", "torch.optim.AdamW")
    settings["optim"] = _OPTIMIZERS.get(optimizer.lower(), optimizer)
    loss = settings.get("loss.-component-", "").rpartition(".")[2].lower()
    if loss and "crossentropy" not in loss and not loss.startswith("cewith"):
        raise DataError(
            f"loss {loss[:60]}: a loss that reads pairs or another model is not priced here",
            hint="a loss of cross-entropy",
        )
    chunks = settings.get("loss.num-output-chunks", "8")
    notes: tuple[str, ...] = ()
    if loss.startswith("liger"):
        settings["linear-loss"] = "liger"
    elif loss == "linearcrossentropyloss" and chunks == "8":
        settings["linear-loss"] = "chunked"
    elif loss in _IN_PARTS:
        notes = (f"not counted: {loss} in {chunks[:12]} parts, which takes less memory",)
    if settings.get("ac-mode", "full").lower() == "selective":
        raise DataError(
            "ac_mode selective: selective checkpointing of whole layers is not priced here",
            hint="enable_activation_checkpointing alone",
        )
    settings["fsdp"] = "full_shard" if devices > 1 else ""
    return notes


TORCHTUNE: Final = trainer_reader(
    TrainerNames(
        framework="torchtune",
        renamed=MappingProxyType(
            {
                "batch-size": "per-device-train-batch-size",
                "dtype": "weights",
                "enable-activation-checkpointing": "gradient-checkpointing",
                "fsdp-cpu-offload": "fsdp.offload-params",
                "fsdp.cpu-offload": "fsdp.offload-params",
                "fsdp-reshard-after-forward": "fsdp.reshard-after-forward",
                "tensor-parallel-dim": "tensor-parallel",
                "context-parallel-dim": "context-parallel",
                "data-parallel-replicate-dim": "dp-replicate",
                "data-parallel-shard-dim": "dp-shard",
                "compile": "torch-compile",
                "tokenizer.max-seq-len": "seq-len",
                "dataset.packed": "packing",
                "model.lora-rank": "lora-rank",
            }
        ),
        defaults=MappingProxyType(
            {
                "per-device-train-batch-size": "1",
                "gradient-accumulation-steps": "1",
                "fsdp.reshard-after-forward": "true",
                "weights": "bf16",
                "gradient-checkpointing": "false",
            }
        ),
        source=DOCS,
        refused=MappingProxyType(
            {
                **refusals(
                    {
                        "moving saved activations to host memory": "enable-activation-offloading",
                        "an optimizer that steps inside backward": "optimizer-in-bwd",
                        "DoRA's norms of weights": "model.use-dora",
                        "a model whose frozen weights have 4 bits (QLoRA)": "model.quantize-base",
                        "adapters on the head": "model.apply-lora-to-output",
                        "products in 8 bits by torchao": "enable-fp8-training",
                        "reinforcement learning": "num-generations grpo-samples",
                    }
                ),
                "quantizer.*": refused("training with simulated quantisation", "no value"),
                "teacher-model.*": refused("distillation", "no value"),
                "reward-model.*": refused("reinforcement learning", "no value"),
                "policy-model.*": refused("reinforcement learning", "no value"),
            }
        ),
        ignored=by_name(
            {
                "data": (
                    "dataset.* dataset-val.* dataset tokenizer.* seed shuffle collate-fn split"
                    " batch-size-val run-val-every-n-steps"
                ),
                "the model, which MODEL says": (
                    "model.* resize-token-embeddings custom-sharded-layers"
                ),
                "checkpoints": (
                    "checkpointer.* output-dir resume-from-checkpoint save-adapter-weights-only "
                    "save-every-n-steps enable-async-checkpointing "
                    "save-every-n-epochs base-model-path"
                ),
                "how long is trained, and how fast is learnt": (
                    "loss.ignore-index epochs max-steps-per-epoch optimizer.* lr-scheduler.*"
                    " clip-grad-norm num-warmup-steps"
                ),
                "what is logged": "metric-logger.* log-* profiler.* profile-memory",
                "how it starts": (
                    "device nproc-per-node nnodes rdzv-* config tensor-parallel-plan.*"
                    " cudnn-deterministic-mode"
                ),
            }
        ),
        understood=MappingProxyType(
            {"loss.-component-": OF_LOSS, "loss.num-output-chunks": OF_LOSS}
        ),
        settled=_normalize,
        possible=NO_PIPELINE,
        splits_stream=True,
    ),
    signature=Signature(
        kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
        programs=frozenset({"tune run"}),
        own=name_set(
            "model.-component- optimizer.-component- tokenizer.-component-"
            " dataset.-component- loss.-component-"
        ),
        files=(NamedFile(setting="config", holds="the configuration"),),
    ),
    includes=frozenset(),
)
