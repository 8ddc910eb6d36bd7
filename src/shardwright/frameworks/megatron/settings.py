"""Table of Megatron-LM's arguments: of the strategy, the job and the model, and ignored ones.

Source of the arguments: Megatron-LM, megatron/training/arguments.py at d98e8a6 (2026-08-22) and of
Megatron-Core 0.19.2; names are in both. Which release brought and dropped which is in `releases`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.settings.refuse_unpriced_settings import OPTIMIZER
from shardwright.frameworks.settings.setting_table import (
    KnownSetting,
    SettingTable,
    WhenWritten,
    degree,
    setting_table,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import (
    PERCENT,
    TEXT,
    WHOLE,
    ValueForm,
    choice,
)
from shardwright.frameworks.settings.setting_verdicts import Verdict

ORDERS: Final = (("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "ep", "pp", "dp"))
"""Orders of axes, innermost first: Megatron's default, and that of ``--use-tp-pp-dp-mapping``."""
LAYOUT: Final = "pipeline-model-parallel-layout"
FLAG: Final = ValueForm(read=lambda *_: True, write=lambda _: "", values=(True,))
"""Form of a command-line switch, which has no value."""
_ALWAYS: Final = WhenWritten.ALWAYS
_STAGE, _FORMAT, _FULL, _DROPOUT = "stage of ZeRO", "number format", "recompute=full", "dropout"


SETTINGS: Final[SettingTable] = setting_table(
    degree("tensor-model-parallel-size", "tp"),
    degree("pipeline-model-parallel-size", "pp"),
    degree("context-parallel-size", "cp"),
    KnownSetting(
        "micro-batch-size", "samples of a microbatch", "microbatch", absent=1, when=_ALWAYS
    ),
    KnownSetting("global-batch-size", "samples of a step", "global_batch"),
    KnownSetting("sequence-parallel", "sp", "sp", FLAG, False),
    degree("expert-model-parallel-size", "ep"),
    KnownSetting("expert-tensor-parallel-size", "etp", "etp"),
    KnownSetting("cp-comm-type", "ring, gather or Ulysses of cp", "exchange", TEXT),
    KnownSetting(
        "hierarchical-context-parallel-sizes", "Ulysses and ring of cp", "exchange_sizes", TEXT
    ),
    KnownSetting("num-virtual-stages-per-pipeline-rank", "vpp", "vpp", absent=1),
    KnownSetting(LAYOUT, "layers of each chunk", "layout", TEXT),
    KnownSetting(
        "use-tp-pp-dp-mapping",
        "order of ranks",
        "order",
        ValueForm(read=lambda *_: ORDERS[1], write=lambda _: "", values=ORDERS[1:]),
        ORDERS[0],
    ),
    KnownSetting("use-megatron-fsdp", "stage of ZeRO, by its strategy", "has_fsdp", FLAG, False),
    KnownSetting(
        "data-parallel-sharding-strategy",
        _STAGE,
        "sharded_stage",
        choice({"optim_grads": 2, "optim_grads_params": 3}),
    ),
    KnownSetting("ckpt-format", "checkpoints", "checkpoints", TEXT, verdict=Verdict.IGNORED),
    KnownSetting("use-distributed-optimizer", "zero1", "is_sharded", FLAG, False),
    KnownSetting(
        "num-distributed-optimizer-instances", "members of a sharding group", "instances", absent=1
    ),
    KnownSetting(
        "optimizer-cpu-offload", "optimizer states in host memory", "is_offloaded", FLAG, False
    ),
    KnownSetting(
        "use-precision-aware-optimizer", "", "is_precision_aware", FLAG, verdict=Verdict.IGNORED
    ),
    KnownSetting(
        "optimizer-offload-fraction",
        "share of the optimizer's states in host memory",
        "offload_share",
        PERCENT,
        100,
        _ALWAYS,
    ),
    KnownSetting("recompute-granularity", "recompute", "granularity", TEXT),
    KnownSetting("recompute-method", "which layers are recomputed", "method", TEXT),
    KnownSetting("recompute-num-layers", "how many layers are recomputed", "method_layers"),
    KnownSetting("recompute-modules", "modules that run again", "modules", TEXT),
    KnownSetting("bf16", _FORMAT, "bf16", FLAG, False),
    KnownSetting("fp16", _FORMAT, "fp16", FLAG, False),
    *(
        KnownSetting(f"{place}-dropout", _DROPOUT, f"{place}_dropout", TEXT)
        for place in ("attention", "hidden")
    ),
    KnownSetting("fp8-format", "products in 8 bits", "fp8_format", TEXT),
    # These are only read, and several of them together set one field.
    KnownSetting(
        "cpu-offloading-num-layers", "layers whose activations wait in host memory", "host", WHOLE
    ),
    KnownSetting("num-layers-per-virtual-pipeline-stage", "vpp"),
    *(
        KnownSetting(f"decoder-{end}-pipeline-num-layers", f"layers of the {end} stage")
        for end in ("first", "last")
    ),
    *(
        KnownSetting(f"account-for-{end}-in-pipeline-split", f"the {what} counts as a layer")
        for end, what in (("embedding", "embedding"), ("loss", "head"))
    ),
    KnownSetting("seq-length", "tokens of a sample"),
    KnownSetting("encoder-seq-length", "tokens of a sample"),
    KnownSetting("use-custom-fsdp", "stage of ZeRO, by its strategy"),
    KnownSetting("use-torch-fsdp2", "zero3"),
    KnownSetting("zero-stage", "stage of ZeRO (Megatron-DeepSpeed)"),
    KnownSetting("recompute-activations", "recompute=selective"),
    KnownSetting("checkpoint-activations", _FULL),
    KnownSetting("fp4-format", "products in 4 bits"),
    version="core 0.19.2",
    ignored={
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
            "save load save-interval no-load-optim no-load-rng no-save-optim"
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
    },
    unmodelled={
        "weight gradients wait": "delay-wgrad-compute",
        "priorities of streams": "high-priority-stream-groups",
        "channels of communicators": "nccl-communicator-config-path",
        "how collectives of tensor parallelism are cut": "tp-comm-overlap-cfg",
        "softmax of unfused attention in 32 bits": "attention-softmax-in-fp32",
        "the stream in 32 bits": "fp32-residual-connection",
        "routing in 32 bits": "moe-router-dtype",
        "shared experts beside the exchange of tokens": "moe-shared-expert-overlap",
        "deterministic kernels": "deterministic-mode",
        "saved activations split over tp": "distribute-saved-activations partition-activations",
        "tokens of experts that are dropped": "moe-expert-capacity-factor",
        "tokens of experts that are padded": "moe-pad-expert-input-to-capacity",
        "a norm behind the embedding": "embed-layernorm",
    },
    refused=MappingProxyType({"optimizer": OPTIMIZER}),
)

_DEFAULTS: Final = MappingProxyType(
    {
        "kv-lora-rank": "32",
        "qk-head-dim": "128",
        "qk-pos-emb-head-dim": "64",
        "v-head-dim": "128",
        "moe-router-topk": "2",
        "moe-layer-freq": "1",
        "moe-router-score-function": "softmax",
        "normalization": "LayerNorm",
        "norm-epsilon": "1e-05",
        "position-embedding-type": "learned_absolute",
        "rotary-base": "10000",
        "rotary-percent": "1",
    }
)
_OF_MODEL: Final = (
    "num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups"
    " group-query-attention kv-channels multi-latent-attention q-lora-rank kv-lora-rank"
    " qk-head-dim qk-pos-emb-head-dim v-head-dim qk-layernorm add-qkv-bias window-size"
    " num-experts moe-router-topk moe-ffn-hidden-size moe-layer-freq"
    " moe-shared-expert-intermediate-size moe-shared-expert-gate moe-router-score-function"
    " moe-router-pre-softmax moe-router-topk-scaling-factor moe-router-enable-expert-bias"
    " moe-router-num-groups moe-router-group-topk vocab-size max-position-embeddings"
    " normalization norm-epsilon position-embedding-type use-rotary-position-embeddings"
    " rotary-base rotary-percent rotary-interleaved use-rope-scaling rope-scaling-factor"
    " swiglu squared-relu disable-bias-linear untie-embeddings-and-output-weights"
    " no-position-embedding apply-layernorm-1p init-method-std"
)
MODEL_DEFAULTS: Final = MappingProxyType(
    {name: _DEFAULTS.get(name, "") for name in _OF_MODEL.split()}
)
"""Arguments of the model -> default value."""
_TOLD: Final = (
    "group-query-attention moe-router-topk-scaling-factor vocab-size max-position-embeddings"
    " norm-epsilon position-embedding-type use-rotary-position-embeddings rotary-base"
    " rotary-percent rotary-interleaved use-rope-scaling rope-scaling-factor"
    " no-position-embedding apply-layernorm-1p init-method-std"
)
MODEL_LOOSE: Final = frozenset(_TOLD.split())
"""Arguments of the model that are listed but not compared: they hardly change a step's time or
memory, or have several spellings."""
