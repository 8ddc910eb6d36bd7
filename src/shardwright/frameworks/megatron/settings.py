"""Megatron-LM's arguments by what they are here: part of the strategy or the job, of the model, or
of neither.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.launch import by_name
from shardwright.frameworks.launch.unpriced_settings import OPTIMIZER

UNDERSTOOD: Final = MappingProxyType(
    {
        "tensor-model-parallel-size": "tp",
        "pipeline-model-parallel-size": "pp",
        "context-parallel-size": "cp",
        "cp-comm-type": "ring, gather or Ulysses of cp",
        "hierarchical-context-parallel-sizes": "Ulysses and ring of cp",
        "expert-model-parallel-size": "ep",
        "expert-tensor-parallel-size": "etp",
        "sequence-parallel": "sp",
        "num-layers-per-virtual-pipeline-stage": "vpp",
        "num-virtual-stages-per-pipeline-rank": "vpp",
        "pipeline-model-parallel-layout": "layers of each chunk",
        "decoder-first-pipeline-num-layers": "layers of the first stage",
        "decoder-last-pipeline-num-layers": "layers of the last stage",
        "account-for-embedding-in-pipeline-split": "the embedding counts as a layer",
        "account-for-loss-in-pipeline-split": "the head counts as a layer",
        "micro-batch-size": "samples of a microbatch",
        "global-batch-size": "samples of a step",
        "seq-length": "tokens of a sample",
        "encoder-seq-length": "tokens of a sample",
        "use-distributed-optimizer": "zero1",
        "num-distributed-optimizer-instances": "members of a sharding group",
        "use-megatron-fsdp": "stage of ZeRO, by its strategy",
        "use-custom-fsdp": "stage of ZeRO, by its strategy",
        "use-torch-fsdp2": "zero3",
        "data-parallel-sharding-strategy": "stage of ZeRO",
        "zero-stage": "stage of ZeRO (Megatron-DeepSpeed)",
        "recompute-granularity": "recompute",
        "recompute-method": "which layers are recomputed",
        "recompute-num-layers": "how many layers are recomputed",
        "recompute-activations": "recompute=selective",
        "checkpoint-activations": "recompute=full",
        "recompute-modules": "modules that run again",
        "cpu-offloading-num-layers": "layers whose activations wait in host memory",
        "optimizer-cpu-offload": "optimizer states in host memory",
        "optimizer-offload-fraction": "share of the optimizer's states in host memory",
        "use-tp-pp-dp-mapping": "order of ranks",
        "bf16": "number format",
        "fp16": "number format",
        "fp8-format": "products in 8 bits",
        "fp4-format": "products in 4 bits",
        "attention-dropout": "dropout",
        "hidden-dropout": "dropout",
    }
)
"""Arguments of the strategy and of the job -> what they say."""
REFUSED: Final = MappingProxyType({"optimizer": OPTIMIZER})
"""Arguments that change the answer and are not priced."""

MODEL_DEFAULTS: Final = MappingProxyType(
    {
        "num-layers": "",
        "hidden-size": "",
        "ffn-hidden-size": "",
        "num-attention-heads": "",
        "num-query-groups": "",
        "group-query-attention": "",
        "kv-channels": "",
        "multi-latent-attention": "",
        "q-lora-rank": "",
        "kv-lora-rank": "32",
        "qk-head-dim": "128",
        "qk-pos-emb-head-dim": "64",
        "v-head-dim": "128",
        "qk-layernorm": "",
        "add-qkv-bias": "",
        "window-size": "",
        "num-experts": "",
        "moe-router-topk": "2",
        "moe-ffn-hidden-size": "",
        "moe-layer-freq": "1",
        "moe-shared-expert-intermediate-size": "",
        "moe-shared-expert-gate": "",
        "moe-router-score-function": "softmax",
        "moe-router-pre-softmax": "",
        "moe-router-topk-scaling-factor": "",
        "moe-router-enable-expert-bias": "",
        "moe-router-num-groups": "",
        "moe-router-group-topk": "",
        "vocab-size": "",
        "max-position-embeddings": "",
        "normalization": "LayerNorm",
        "norm-epsilon": "1e-05",
        "position-embedding-type": "learned_absolute",
        "use-rotary-position-embeddings": "",
        "rotary-base": "10000",
        "rotary-percent": "1",
        "rotary-interleaved": "",
        "use-rope-scaling": "",
        "rope-scaling-factor": "",
        "swiglu": "",
        "squared-relu": "",
        "disable-bias-linear": "",
        "untie-embeddings-and-output-weights": "",
        "no-position-embedding": "",
        "apply-layernorm-1p": "",
        "init-method-std": "",
    }
)
"""Arguments of the model -> their value where they are not given."""
MODEL_LOOSE: Final = frozenset(
    {
        *(
            "vocab-size",
            "max-position-embeddings",
            "norm-epsilon",
            "init-method-std",
            "rotary-interleaved",
            "group-query-attention",
        ),
        *(
            "use-rotary-position-embeddings",
            "no-position-embedding",
            "apply-layernorm-1p",
            "rotary-base",
            "position-embedding-type",
        ),
        *(
            "use-rope-scaling",
            "rope-scaling-factor",
            "rotary-percent",
            "moe-router-topk-scaling-factor",
        ),
    }
)
"""Of those, what changes neither time nor memory of a step much, or is said in several ways: told,
not compared."""

IGNORED: Final = by_name(
    {
        "data": (
            "data-path data-args-path train-data-path valid-data-path test-data-path"
            " data-cache-path split tokenizer-type tokenizer-name-or-path valid-num-workers"
            " tokenizer-model vocab-file merge-file vocab-extra-ids make-vocab-size-divisible-by"
            " num-workers dataloader-type mock-data reset-position-ids reset-attention-mask"
            " eod-mask-loss no-create-attention-mask-in-dataloader data-impl mmap-warmup"
            " num-dataset-builder-threads tiktoken-pattern no-mmap-bin-files"
            " per-split-data-args-path valid-weighted-split-paths train-weighted-split-paths-path"
            " valid-weighted-split-paths-path legacy-tokenizer padded-vocab-size pad-vocab-size-to"
            " trust-remote-code"
        ),
        "how long is trained, and how fast is learnt": (
            "lr min-lr lr-decay-style lr-decay-iters lr-decay-samples lr-warmup-iters"
            " lr-warmup-samples lr-warmup-fraction lr-warmup-init lr-wsd-decay-style"
            " lr-wsd-decay-iters lr-wsd-decay-samples train-iters train-samples weight-decay"
            " start-weight-decay end-weight-decay weight-decay-incr-style adam-beta1 adam-beta2"
            " adam-eps clip-grad rampup-batch-size override-opt-param-scheduler"
            " override-opt_param-scheduler use-checkpoint-opt-param-scheduler decoupled-lr"
            " decoupled-min-lr loss-scale initial-loss-scale min-loss-scale loss-scale-window"
            " hysteresis train-tokens moe-aux-loss-coeff moe-z-loss-coeff"
            " moe-router-load-balancing-type moe-router-bias-update-rate"
            " moe-router-force-load-balancing mtp-loss-scaling-factor universal-checkpoint log-loss"
            " lr-decay-tokens lr-warmup-tokens no-query-key-layer-scaling"
        ),
        "checkpoints": (
            "save load save-interval ckpt-format no-load-optim no-load-rng no-save-optim"
            " no-save-rng auto-detect-ckpt-format dist-ckpt-strictness async-save use-dist-ckpt"
            " finetune exit-on-missing-checkpoint ckpt-fully-parallel-load ckpt-fully-parallel-save"
            " ckpt-assume-constant-structure use-persistent-ckpt-worker pretrained-checkpoint"
            " no-initialization save-retain-interval dist-ckpt-format"
            " use-mp-args-from-checkpoint-args use-checkpoint-args no-ckpt-fully-parallel-save"
        ),
        "what is logged": (
            "log-interval eval-interval eval-iters tensorboard-dir tensorboard-log-interval"
            " tensorboard-queue-size log-timers-to-tensorboard log-batch-size-to-tensorboard"
            " log-validation-ppl-to-tensorboard timing-log-level wandb-project wandb-exp-name"
            " wandb-save-dir wandb-entity log-throughput log-params-norm log-progress"
            " log-num-zeros-in-grad log-memory-to-tensorboard log-world-size-to-tensorboard"
            " log-loss-scale-to-tensorboard timing-log-option no-log-loss-scale-to-tensorboard"
            " no-log-learnig-rate-to-tensorboard log-straggler profile profile-step-start"
            " profile-step-end profile-ranks use-pytorch-profiler logging-level"
            " no-barrier-with-level-1-timing report-theoretical-memory moe-per-layer-logging"
            " check-for-nan-in-loss-and-grad disable-straggler-on-startup straggler-minmax-count"
            " log-optimizer-states-to-tensorboard kill-switch-path"
            " abort-on-unmet-fused-kernel-constraints skip-train exit-interval"
            " exit-duration-in-mins one-logger-* log-level log-level-replica structured-logs"
            " structured-logs-dir mem-profile record-memory-history"
        ),
        "how processes start and meet": (
            "distributed-backend distributed-timeout-minutes lazy-mpu-init local-rank"
            " use-mcore-models rank nproc-per-node nnodes node-rank master-addr master-port"
            " rdzv-endpoint rdzv-backend rdzv-id max-restarts tee enable-ft-package"
            " calc-ft-timeouts use-ring-exchange-p2p standalone enable-gloo-process-groups"
            " disable-gloo-process-groups no-one-logger use-cpu-initialization manual-gc"
            " manual-gc-interval manual-gc-eval spec use-flash-attn-triton deepspeed"
            " deepspeed-config ddp-impl use-contiguous-buffers-in-ddp"
            " no-contiguous-buffers-in-local-ddp enable-one-logger standalone-embedding-stage"
        ),
        "how weights begin": (
            "seed init-method-xavier-uniform data-parallel-random-init perform-initialization"
            " initial-loss sync-tp-duplicated-parameters"
        ),
        "checks of a run": (
            "rerun-mode error-injection-rate calculate-per-token-loss empty-unused-memory-level"
        ),
        "kernels, as the planner has them": (
            "moe-grouped-gemm moe-enable-deepep use-flash-attn masked-softmax-fusion"
            " bias-gelu-fusion no-bias-swiglu-fusion no-rope-fusion no-masked-softmax-fusion"
        ),
        "numbers of 8-bit scaling": (
            "fp8-amax-history-len fp8-amax-compute-algo fp8-margin fp8-interval"
        ),
    }
)
UNMODELLED: Final = MappingProxyType(
    {
        "delay-wgrad-compute": "weight gradients wait",
        "high-priority-stream-groups": "priorities of streams",
        "nccl-communicator-config-path": "channels of communicators",
        "tp-comm-overlap-cfg": "how collectives of tensor parallelism are cut",
        "attention-softmax-in-fp32": "softmax of unfused attention in 32 bits",
        "fp32-residual-connection": "the stream in 32 bits",
        "moe-router-dtype": "routing in 32 bits",
        "moe-shared-expert-overlap": "shared experts beside the exchange of tokens",
        "deterministic-mode": "deterministic kernels",
        "distribute-saved-activations": "saved activations split over tp",
        "moe-expert-capacity-factor": "tokens of experts that are dropped",
        "moe-pad-expert-input-to-capacity": "tokens of experts that are padded",
        "embed-layernorm": "a norm behind the embedding",
        "partition-activations": "saved activations split over tp",
    }
)
"""Arguments that change time or memory in a way that is not counted -> what they change."""
