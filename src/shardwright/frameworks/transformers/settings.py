"""Table of Transformers' Trainer settings under canonical names, which many frameworks share.

Source: Transformers 4.57, training_args.py; Accelerate 1.15.0, utils/dataclasses.py; PEFT 0.17,
tuners/lora/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.accelerate.settings import SETTINGS as ACCELERATE
from shardwright.frameworks.deepspeed.settings import SETTINGS as DEEPSPEED
from shardwright.frameworks.launch.fused_losses import UNDERSTOOD as OF_LOSSES
from shardwright.frameworks.settings.refuse_unpriced_settings import Refusal, refusals, refused
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import by_name

UNDERSTOOD: Final[Mapping[str, str]] = MappingProxyType(
    {
        **DEEPSPEED.understood,
        **{
            name: means for name, means in ACCELERATE.understood.items() if name != "max-seq-length"
        },
        "zero-optimization.overlap-comm": "sets grad_overlap",
        "zero-optimization.offload-param.device": "sets param_offload",
        "per-device-train-batch-size": "samples of a microbatch",
        "train-batch-size": "samples of a step",
        "gradient-accumulation-steps": "microbatches of a step",
        "bf16": "number format",
        "fp16": "number format",
        "fp8": "number format",
        "tf32": "number format of fp32 products",
        "mixed-precision": "number format",
        "weights": "number format in which the model is loaded",
        "gradient-checkpointing": "recompute=full",
        "deepspeed": "stage of ZeRO, by its file",
        "fsdp": "stage of ZeRO",
        "fsdp.sharding-strategy": "stage of ZeRO",
        "fsdp.reshard-after-forward": "stage of ZeRO",
        "fsdp.offload-params": "states in host memory",
        "fsdp.activation-checkpointing": "recompute=full",
        "optim": "dtype of the optimizer's states",
        "seq-len": "tokens of a sample",
        "packing": "samples are joined to the full length",
        "lora": "what is trained",
        "lora-rank": "rank of adapters",
        "lora-target": "products with adapters",
        "attention": "kernel of attention, as the planner has it",
        "torch-compile": "sets kernels",
        **OF_LOSSES,
        "tensor-parallel": "tp",
        "context-parallel": "cp",
        "context-method": "ring or gather of cp",
        "ulysses": "cp, by trading heads",
        "dp-replicate": "replicas of shards",
        "dp-shard": "members of a sharding group",
    }
)
"""Canonical name -> meaning."""
CANONICAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "per-gpu-train-batch-size": "per-device-train-batch-size",
        "torch-dtype": "weights",
        "dtype": "weights",
        "attn-implementation": "attention",
        "bf16-full-eval": "",
        "block-size": "seq-len",
        "max-seq-length": "seq-len",
        "max-length": "seq-len",
        "model-max-length": "seq-len",
        "use-peft": "lora",
        "use-lora": "lora",
        "lora-r": "lora-rank",
        "lora-target-modules": "lora-target",
        "parallelism-config.parallelism-config-dp-replicate-size": "dp-replicate",
        "parallelism-config.parallelism-config-dp-shard-size": "dp-shard",
        "parallelism-config.parallelism-config-tp-size": "tensor-parallel",
        "parallelism-config.parallelism-config-cp-size": "context-parallel",
        "parallelism-config.parallelism-config-cp-comm-strategy": "context-method",
        "parallelism-config.parallelism-config-sp-size": "ulysses",
        "dynamo-config.dynamo-backend": "torch-compile",
        "use-liger-kernel": "liger-loss",
        "liger-kernel-config.fused-linear-cross-entropy": "liger-in-loss",
        **{
            f"fsdp-config.{prefix}{name}": f"fsdp.{name}"
            for prefix in ("fsdp-", "")
            for name in (
                "sharding-strategy",
                "reshard-after-forward",
                "offload-params",
                "activation-checkpointing",
            )
        },
    }
)
"""Name in TrainingArguments, PEFT's and Accelerate's settings -> canonical name."""
IGNORED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **DEEPSPEED.ignored,
        **by_name(
            {
                "how long is trained, and how fast is learnt": (
                    "learning-rate lr-scheduler-type lr-scheduler-kwargs lr-scheduler-kwargs.*"
                    " num-train-epochs max-steps warmup-ratio warmup-steps weight-decay adam-beta1"
                    " adam-beta2 adam-epsilon max-grad-norm label-smoothing-factor seed data-seed"
                    " full-determinism lora-alpha use-rslora optim-args"
                    " average-tokens-across-devices"
                ),
                "what is logged": (
                    "logging-* log-level log-level-replica report-to run-name disable-tqdm "
                    "project trackio-* include-tokens-per-second "
                    "include-num-input-tokens-seen skip-memory-metrics plot-loss wandb-*"
                ),
                "checkpoints": (
                    "output-dir overwrite-output-dir save-* load-best-model-at-end"
                    " resume-from-checkpoint push-to-hub hub-* metric-for-best-model"
                    " greater-is-better fsdp-config.fsdp-state-dict-type"
                    " fsdp-config.state-dict-type restore-callback-*"
                ),
                "evaluation": (
                    "eval-* do-eval do-train do-predict per-device-eval-batch-size"
                    " evaluation-strategy predict-with-generate prediction-*"
                ),
                "data": (
                    "dataset-* dataset train-file validation-file preprocessing-num-workers"
                    " dataloader-* remove-unused-columns group-by-length length-column-name"
                    " max-train-samples max-eval-samples validation-split-percentage streaming"
                    " overwrite-cache keep-linebreaks ignore-data-skip label-names split-batches"
                    " accelerator-config.* data-*"
                ),
                "the model, which MODEL says": (
                    "model-name-or-path model-type config-name tokenizer-name cache-dir"
                    " use-fast-tokenizer model-revision use-auth-token token trust-remote-code"
                    " low-cpu-mem-usage config-overrides model-init-kwargs.* use-cache"
                    " model-id-or-path"
                ),
                "how it starts": (
                    "local-rank ddp-timeout ddp-backend ddp-find-unused-parameters"
                    " ddp-broadcast-buffers deepspeed-multinode-launcher use-cpu no-cuda env.*"
                    " num-machines main-process-* machine-rank rdzv-* master-* nnodes"
                    " nproc-per-node node-rank config-file config accelerate-config num-gpus"
                    " num-nodes hostfile include standalone compute-environment debug same-network"
                    " downcast-bf16 main-training-function tpu-* enable-cpu-affinity gpu-ids"
                    " dynamo-config.* deepspeed-config.* distributed-executor-backend"
                ),
                "how it shards": (
                    "fsdp-config.fsdp-version fsdp-config.version fsdp-config.fsdp-use-orig-params"
                    " fsdp-config.use-orig-params fsdp-config.fsdp-sync-module-states"
                    " fsdp-config.sync-module-states fsdp-config.fsdp-cpu-ram-efficient-loading"
                    " fsdp-config.cpu-ram-efficient-loading fsdp-config.xla* fsdp-version"
                    " fsdp-config.limit-all-gathers fsdp-config.fsdp-limit-all-gathers"
                    " fsdp-config.fsdp-final-state-dict-type"
                ),
                "a layer is a unit": (
                    "fsdp-config.fsdp-auto-wrap-policy fsdp-config.auto-wrap-policy"
                    " fsdp-config.fsdp-transformer-layer-cls-to-wrap"
                    " fsdp-config.transformer-layer-cls-to-wrap fsdp-transformer-layer-cls-to-wrap"
                    " fsdp-config.fsdp-min-num-params fsdp-config.min-num-params"
                ),
                "how gradient checkpointing is called": (
                    "gradient-checkpointing-kwargs gradient-checkpointing-kwargs.*"
                ),
            }
        ),
    }
)
UNMODELLED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **DEEPSPEED.unmodelled,
        **by_name(
            {
                "masks of dropout before adapters": "lora-dropout",
                "when parameters are gathered ahead": (
                    "fsdp-config.fsdp-backward-prefetch fsdp-config.backward-prefetch"
                    " fsdp-config.fsdp-backward-prefetch-policy fsdp-config.fsdp-forward-prefetch"
                    " fsdp-config.forward-prefetch"
                ),
                "Liger's fused kernels": "liger-kernel-config.*",
                "noise on embeddings": "neftune-noise-alpha",
                "how the compiler is called": "torch-compile-mode torch-compile-backend",
                "the cache of the allocator is emptied now and then": "torch-empty-cache-steps",
                "size of buckets": "ddp-bucket-cap-mb",
            }
        ),
    }
)
ATTENTION: Final = (
    *(
        "flash_attention_2",
        "flash_attention_3",
        "flash_attention",
        "flash_attn",
        "flash",
        "fa2",
        "sdpa",
        "auto",
    ),
    *(
        f"kernels-community/{name}"
        for name in ("flash-attn", "flash-attn2", "flash-attn3", "vllm-flash-attn3")
    ),
)
"""Names of fused attention kernels."""
REFUSED: Final[Mapping[str, Refusal]] = MappingProxyType(
    {
        **refusals(
            {
                "a model whose frozen weights have 4 bits (QLoRA)": "load-in-4bit q-lora",
                "a model whose frozen weights have 8 bits": "load-in-8bit",
                "DoRA's norms of weights": "use-dora",
                "training whole modules beside adapters": "lora-modules-to-save modules-to-save",
                "moving saved activations to host memory": "activation-offloading",
                "an optimizer of some modules alone": "optim-target-modules",
                "a batch that the program finds while it runs": "auto-find-batch-size",
                "Intel's extension": "use-ipex",
                "FSDP of PyTorch/XLA": "fsdp-config.xla",
                "Transformers on TPU": "tpu-num-cores",
                "options of the compiler": "torch-compile-options.*",
            }
        ),
        "attn-implementation": refused(
            "an attention kernel that is not fused, or FlexAttention", *ATTENTION
        ),
    }
)
