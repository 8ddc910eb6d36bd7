"""Combinations of arguments that Megatron-LM refuses, and arguments without effect.

Source of the rules: Megatron-LM core_v0.12.0, megatron/training/arguments.py (validate_args), and
core_v0.16.1, megatron/core/transformer/transformer_block.py (get_num_layers_to_build) and
transformer_config.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.rule_violations import Violation

_LAYOUT = "pipeline-model-parallel-layout"
_EXPERTS = "num-experts"
REFUSED_LAYERS = "launch.layers"
"""Rule id: the layers do not divide over the stages."""


def refused_arguments(
    arguments: Arguments, *, layers: int, older: bool = False
) -> Iterator[Violation]:
    """Yield violations of rules at which Megatron-LM itself would refuse to start the launch.

    Args:
        arguments: arguments of the launch with defaults.
        layers: layers of the model.
        older: the launch is of a release before 3.0.
    """
    if "checkpoint-activations" in arguments and not older:
        yield _refused_rule(
            "recompute",
            "--checkpoint-activations in a release from 3.0 on",
            "--recompute-granularity full --recompute-method uniform",
        )
    yield from _layer_violations(arguments, layers)
    if "overlap-param-gather" in arguments and not arguments.keys() & {
        "use-distributed-optimizer",
        "use-megatron-fsdp",
        "use-custom-fsdp",
    }:
        yield _refused_rule(
            "overlap-param-gather",
            "--overlap-param-gather without --use-distributed-optimizer",
            "add --use-distributed-optimizer",
        )
    if "overlap-param-gather" in arguments and "overlap-grad-reduce" not in arguments:
        yield _refused_rule(
            "overlap-param-gather",
            "--overlap-param-gather without --overlap-grad-reduce",
            "add --overlap-grad-reduce",
        )
    if "bf16" in arguments and "fp16" in arguments:
        yield _refused_rule("number-format", "--bf16 and --fp16", "one of them")
    if arguments.get("recompute-granularity") == "full" and "recompute-method" not in arguments:
        yield _refused_rule(
            "recompute",
            "--recompute-granularity full without --recompute-method",
            "add --recompute-method uniform, and how many layers",
        )
    if (
        "tp-comm-overlap" in arguments
        and "sequence-parallel" not in arguments
        and count(arguments, "tensor-model-parallel-size", 1) > 1
    ):
        yield _refused_rule(
            "tp-comm-overlap",
            "--tp-comm-overlap without --sequence-parallel",
            "add --sequence-parallel",
        )


def _refused_rule(name: str, message: str, hint: str) -> Violation:
    """Violation ``launch.NAME`` of a rule of Megatron-LM, with a message and a hint."""
    return Violation(
        rule=f"launch.{name}", message=f"{message}, which Megatron-LM refuses", hint=hint
    )


def _layer_violations(arguments: Arguments, layers: int) -> Iterator[Violation]:
    """Yield a violation if the layers do not divide over the pipeline's stages and chunks.

    A layout, or layers of the ends, change the number that has to divide.
    """
    pp = count(arguments, "pipeline-model-parallel-size", 1)
    if pp < 2 or _LAYOUT in arguments:
        return
    ends = [
        name
        for name in ("first", "last")
        if count(arguments, f"decoder-{name}-pipeline-num-layers")
    ]
    counted = [
        name
        for name in ("embedding", "loss")
        if f"account-for-{name}-in-pipeline-split" in arguments
    ]
    left, stages = layers + len(counted), pp - len(ends)
    for name in ends:
        left -= count(arguments, f"decoder-{name}-pipeline-num-layers")
    each = count(arguments, "num-layers-per-virtual-pipeline-stage")
    chunks = count(arguments, "num-virtual-stages-per-pipeline-rank", 1)
    hint = (
        f"--{_LAYOUT} (from 0.13), --account-for-embedding-in-pipeline-split (from 0.11), or"
        " another pp"
    )
    beside = (
        " and embedding or loss as a layer"
        if counted
        else " beside those of the ends"
        if ends
        else ""
    )
    if stages > 0 and left % stages:
        yield _refused_rule(
            "layers", f"{left} layers{beside} do not divide by {stages} stages", hint
        )
    elif stages > 0 and each and (left // stages) % each:
        yield _refused_rule(
            "layers",
            f"{left // stages} layers a stage do not divide by {each} layers a chunk",
            hint,
        )
    elif stages > 0 and chunks > 1 and (left // stages) % chunks:
        yield _refused_rule(
            "layers", f"{left // stages} layers a stage do not divide by {chunks} chunks", hint
        )


def idle_arguments(arguments: Arguments, grid: Grid) -> dict[str, str]:
    """Argument -> reason, of written arguments that have no effect under the grid.

    Args:
        arguments: arguments as they were written.
        grid: the strategy of the launch.
    """
    replicas = grid.dp * grid.cp
    reasons = {
        "tensor parallelism is 1": ("sequence-parallel tp-comm-overlap", grid.tp == 1),
        "there is one replica": (
            "overlap-grad-reduce overlap-param-gather use-distributed-optimizer",
            replicas == 1,
        ),
        "the pipeline has one chunk a rank": ("no-overlap-p2p-communication", grid.vpp == 1),
        "context parallelism is 1": (
            "cp-comm-type hierarchical-context-parallel-sizes",
            grid.cp == 1,
        ),
        "the model has no experts": (
            (
                "expert-model-parallel-size expert-tensor-parallel-size moe-grouped-gemm"
                " moe-token-dispatcher-type moe-permute-fusion"
            ),
            _EXPERTS not in arguments and grid.ep == 1,
        ),
        "nothing is recomputed whole": (
            "recompute-method recompute-num-layers",
            arguments.get("recompute-granularity") not in ("full",)
            and "checkpoint-activations" not in arguments,
        ),
        "recompute is not selective": (
            "recompute-modules",
            arguments.get("recompute-granularity") != "selective"
            and "recompute-activations" not in arguments,
        ),
        "no states are on the host": (
            "optimizer-offload-fraction",
            "optimizer-cpu-offload" not in arguments,
        ),
        "products are in 16 bits or more": (
            "fp8-recipe fp8-param-gather fp8-amax-history-len fp8-amax-compute-algo",
            "fp8-format" not in arguments,
        ),
        "embedding and loss are on one stage": (
            (
                "account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split"
                " pipeline-model-parallel-layout"
            ),
            grid.pp == 1,
        ),
    }
    return {
        name: why
        for why, (names, holds) in reasons.items()
        if holds
        for name in names.split()
        if name in arguments
    }
