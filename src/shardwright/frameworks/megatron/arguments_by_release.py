"""Megatron-LM's arguments by release: first and last release, and today's names of old ones.

Source: the command lines of the tags v2.0 to core_v0.16.0 (megatron/arguments.py,
megatron/training/arguments.py), read name by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.runtime.parse_launch_arguments import ON, Arguments

RELEASES: Final = names(
    "2.0 2.5 2.6 3.0 0.4 0.5 0.6 0.7 0.8 0.9 0.10 0.11 0.12 0.13 0.14 0.15 0.16"
)
"""Releases in order; 3.0 is Megatron-LM of 2022 to mid 2023, 0.4 the first Megatron-Core here."""
_FIRST: Final[Mapping[str, str]] = MappingProxyType(
    {
        "2.5": (
            "num-layers-per-virtual-pipeline-stage accumulate-allreduce-grads-in-fp32"
            " use-contiguous-buffers-in-ddp bf16 no-scatter-gather-tensors-in-pipeline"
        ),
        "2.6": (
            "activations-checkpoint-method activations-checkpoint-num-layers"
            " no-contiguous-buffers-in-local-ddp"
        ),
        "3.0": (
            "recompute-activations recompute-granularity recompute-method recompute-num-layers"
            " sequence-parallel distribute-saved-activations use-distributed-optimizer"
            " use-flash-attn transformer-impl no-gradient-accumulation-fusion"
            " no-async-tensor-model-parallel-allreduce swiglu untie-embeddings-and-output-weights"
            " disable-bias-linear fp8-e4m3 fp8-hybrid overlap-p2p-communication num-experts"
        ),
        "0.4": (
            "context-parallel-size expert-model-parallel-size fp8-format overlap-grad-reduce"
            " overlap-param-gather tp-comm-overlap no-overlap-p2p-communication"
            " group-query-attention norm-epsilon normalization no-check-for-nan-in-loss-and-grad"
            " use-mcore-models"
        ),
        "0.5": (
            "moe-grouped-gemm moe-router-topk moe-router-load-balancing-type moe-aux-loss-coeff"
            " moe-token-dropping"
        ),
        "0.6": "moe-token-dispatcher-type use-dist-ckpt decoupled-lr qk-layernorm yaml-cfg",
        "0.7": (
            "moe-expert-capacity-factor moe-pad-expert-input-to-capacity moe-extended-tp"
            " moe-layer-recompute use-tp-pp-dp-mapping ddp-bucket-size"
        ),
        "0.8": (
            "cross-entropy-loss-fusion ddp-average-in-collective defer-embedding-wgrad-compute"
            " rotary-base use-legacy-models"
        ),
        "0.9": (
            "decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers fp8-param-gather"
            " ckpt-format overlap-param-gather-with-optimizer-step"
        ),
        "0.10": (
            "cp-comm-type hierarchical-context-parallel-sizes expert-tensor-parallel-size"
            " num-distributed-optimizer-instances use-torch-fsdp2 moe-ffn-hidden-size"
            " moe-layer-freq moe-shared-expert-intermediate-size moe-shared-expert-overlap"
            " multi-latent-attention"
        ),
        "0.11": (
            "account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split"
            " attention-backend moe-permute-fusion num-virtual-stages-per-pipeline-rank"
            " use-precision-aware-optimizer exp-avg-dtype exp-avg-sq-dtype"
            " moe-router-score-function"
        ),
        "0.12": (
            "cross-entropy-fusion-impl fp8-recipe recompute-modules optimizer-cpu-offload"
            " grad-reduce-in-bf16 use-custom-fsdp data-parallel-sharding-strategy moe-enable-deepep"
            " moe-router-dtype mtp-num-layers cuda-graph-scope"
        ),
        "0.13": "pipeline-model-parallel-layout delay-wgrad-compute use-nccl-ub",
        "0.14": "use-megatron-fsdp moe-router-fusion overlap-moe-expert-parallel-comm",
        "0.15": "fp4-format cuda-graph-impl window-size",
    }
)
"""Release -> arguments that it was the first to have, of those that change time or memory."""
_LAST: Final[Mapping[str, str]] = MappingProxyType(
    {
        "2.5": "checkpoint-num-layers use-contiguous-buffers-in-ddp",
        "2.6": (
            "activations-checkpoint-method activations-checkpoint-num-layers"
            " distribute-checkpointed-activations override-lr-scheduler use-checkpoint-lr-scheduler"
            " checkpoint-activations"
        ),
        "3.0": (
            "layernorm-epsilon fp8-e4m3 fp8-hybrid overlap-p2p-communication"
            " no-query-key-layer-scaling data-impl mmap-warmup no-contiguous-buffers-in-local-ddp"
        ),
        "0.6": "moe-token-dropping",
        "0.7": "enable-one-logger",
        "0.8": "delay-param-gather no-delay-grad-reduce log-batch-size-to-tensorboard",
        "0.10": "standalone-embedding-stage",
        "0.13": "use-custom-fsdp",
    }
)
"""Release -> arguments that it was the last to have. Later ones stop at
``--checkpoint-activations``, too."""
_RUNTIMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("2.0", "2.5", "2.6"), "megatron-2021"),
        "3.0": "megatron-2022",
        "0.4": "megatron-core-0.5",
        **{f"0.{number}": f"megatron-core-0.{number}" for number in range(5, 13)},
        **dict.fromkeys(("0.13", "0.14"), "megatron-core-0.12"),
        **dict.fromkeys(("0.15", "0.16"), "megatron-core-0.16"),
    }
)
"""Release -> the runtime that stands for it."""
USUAL: Final = "0.12"
"""Release of a launch whose arguments exist in many releases."""
_PLACE: Final = MappingProxyType({name: place for place, name in enumerate(RELEASES)})
_BROUGHT: Final = MappingProxyType(
    {name: release for release, names in _FIRST.items() for name in names.split()}
)
_DROPPED: Final = MappingProxyType(
    {name: release for release, names in _LAST.items() for name in names.split()}
)


def current_arguments(name: str, value: str) -> tuple[tuple[str, str], ...]:
    """(name, value) pairs of today's arguments for one of any release; unknown ones unchanged."""
    if name == "activations-checkpoint-method":
        return (("recompute-granularity", "full"), ("recompute-method", value))
    if name in ("activations-checkpoint-num-layers", "checkpoint-num-layers"):
        return (("recompute-num-layers", value),)
    if name in ("fp8-e4m3", "fp8-hybrid"):
        return (("fp8-format", name.removeprefix("fp8-") if value == ON else "false"),)
    return ((_RENAMED.get(name, name), value),)


_RENAMED: Final = MappingProxyType(
    {
        "layernorm-epsilon": "norm-epsilon",
        "distribute-checkpointed-activations": "distribute-saved-activations",
        "override-lr-scheduler": "override-opt-param-scheduler",
        "use-checkpoint-lr-scheduler": "use-checkpoint-opt-param-scheduler",
        "model-parallel-size": "tensor-model-parallel-size",
        "batch-size": "micro-batch-size",
    }
)
"""Argument of an older release -> today's name."""


def release_of(arguments: Arguments) -> tuple[str, str, str]:
    """(Megatron-LM release with all arguments, newest argument or "", first dropped one or "").

    The release has all arguments of the launch.

    It is 0.12 if that has them all, else the newest release before 0.12 that does, or the oldest
    after. Where no release has all, the newest argument decides: dropped arguments stay in scripts
    for long.
    """
    dated = [name for name in arguments if name in _BROUGHT or name in _DROPPED]
    first = max(
        (name for name in dated if name in _BROUGHT),
        key=lambda name: _PLACE[_BROUGHT[name]],
        default="",
    )
    last = min(
        (name for name in dated if name in _DROPPED),
        key=lambda name: _PLACE[_DROPPED[name]],
        default="",
    )
    least = _PLACE[_BROUGHT[first]] if first else 0
    most = _PLACE[_DROPPED[last]] if last else len(RELEASES) - 1
    place = min(max(_PLACE[USUAL], least), most) if least <= most else max(_PLACE[USUAL], least)
    return RELEASES[place], first, last


def runtime_of(arguments: Arguments) -> tuple[str, str]:
    """(runtime for the release of a launch, note if that is not the usual release or empty)."""
    release, first, last = release_of(arguments)
    runtime = _RUNTIMES[release]
    if runtime == _RUNTIMES[USUAL]:
        return runtime, ""
    if _PLACE[release] < _PLACE[USUAL]:
        return (
            runtime,
            (
                f"--{last} is an argument of Megatron-LM up to {_DROPPED[last]}: read as a launch"
                f" of {release}"
            ),
        )
    return (
        runtime,
        (
            f"--{first} is an argument of Megatron-LM from {_BROUGHT[first]} on: read as a launch"
            f" of {release}"
        ),
    )
