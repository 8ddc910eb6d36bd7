"""Megatron-Bridge's configuration fields of each Megatron-LM argument.

Source of the fields: Megatron-Bridge 0.6.2, training/config.py (`ConfigContainer`),
training/comm_overlap.py, training/mixed_precision.py and models/gpt_provider.py; of Megatron-Core
0.19.2, what these inherit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shardwright.frameworks.megatron.plan_arguments import is_environment_variable
from shardwright.frameworks.settings.setting_table import KnownSetting, SettingTable, setting_table
from shardwright.frameworks.settings.setting_values_from_and_to_text import choice

Field = tuple[str, str]
"""(section.field, value as Python text)."""

RENAMED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "norm-epsilon": ("model.layernorm_epsilon",),
    "num-experts": ("model.num_moe_experts",),
    "seq-length": ("model.seq_length", "dataset.seq_length"),
    "micro-batch-size": ("train.micro_batch_size",),
    "global-batch-size": ("train.global_batch_size",),
    "num-virtual-stages-per-pipeline-rank": ("model.virtual_pipeline_model_parallel_size",),
    "use-tp-pp-dp-mapping": ("dist.use_tp_pp_dp_mapping",),
    "use-megatron-fsdp": ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp"),
    "data-parallel-sharding-strategy": ("ddp.data_parallel_sharding_strategy",),
    "ckpt-format": ("checkpoint.ckpt_format",),
    "use-distributed-optimizer": (
        "ddp.use_distributed_optimizer",
        "optimizer.use_distributed_optimizer",
    ),
    "num-distributed-optimizer-instances": ("ddp.num_distributed_optimizer_instances",),
    "ddp-average-in-collective": ("ddp.average_in_collective",),
    "optimizer-cpu-offload": ("optimizer.optimizer_cpu_offload",),
    "optimizer-offload-fraction": ("optimizer.optimizer_offload_fraction",),
    "use-precision-aware-optimizer": ("optimizer.use_precision_aware_optimizer",),
    "exp-avg-dtype": ("optimizer.exp_avg_dtype",),
    "exp-avg-sq-dtype": ("optimizer.exp_avg_sq_dtype",),
    "overlap-grad-reduce": ("comm_overlap.overlap_grad_reduce",),
    "overlap-param-gather": ("comm_overlap.overlap_param_gather",),
    "tp-comm-overlap": ("comm_overlap.tp_comm_overlap",),
    "overlap-moe-expert-parallel-comm": ("comm_overlap.overlap_moe_expert_parallel_comm",),
    "delay-wgrad-compute": ("comm_overlap.delay_wgrad_compute",),
    "grad-reduce-in-fp32": ("mixed_precision.grad_reduce_in_fp32",),
    "fp8-param-gather": ("mixed_precision.fp8_param_gather",),
    "fp8-dot-product-attention": ("mixed_precision.fp8_dot_product_attention",),
    "use-rope-scaling": ("model.rope_scaling",),
}
"""Argument -> fields, where the field has another name or is outside of the model's section."""
FIELD_VALUES: Final[Mapping[str, tuple[Field, ...]]] = {
    "swiglu": (("model.gated_linear_unit", "True"), ("model.activation_func", "F.silu")),
    "squared-relu": (
        ("model.gated_linear_unit", "False"),
        ("model.activation_func", "squared_relu"),
    ),
    "disable-bias-linear": (("model.add_bias_linear", "False"),),
    "untie-embeddings-and-output-weights": (
        ("model.share_embeddings_and_output_weights", "False"),
    ),
    "no-check-for-nan-in-loss-and-grad": (
        ("ddp.check_for_nan_in_grad", "False"),
        ("rerun_state_machine.check_for_nan_in_loss", "False"),
    ),
    "no-gradient-accumulation-fusion": (("model.gradient_accumulation_fusion", "False"),),
    "no-overlap-p2p-communication": (("comm_overlap.overlap_p2p_comm", "False"),),
    # Arguments that the precision sets, that follow from another field, or that have no field.
    **dict.fromkeys(("bf16", "fp16", "fp8-format", "fp8-recipe"), ()),
    **dict.fromkeys(
        (
            "group-query-attention",
            "max-position-embeddings",
            "no-async-tensor-model-parallel-allreduce",
        ),
        (),
    ),
}
"""Argument -> fields with other values, or no fields."""
DTYPES: Final[Mapping[str, str]] = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}
"""Number formats of Megatron-LM's arguments, as Python."""
LISTS: Final = frozenset(
    {"hierarchical-context-parallel-sizes", "recompute-modules", "cuda-graph-scope"}
)
RECIPES: Final = {
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
}
"""Value of ``--fp8-recipe`` -> Megatron-Bridge's precision."""
SETTINGS: Final[SettingTable] = setting_table(
    KnownSetting(
        "mixed_precision",
        "number format",
        "precision",
        choice({"bf16_mixed": "bf16", "fp16_mixed": "fp16"}),
    ),
    version="0.6.2",
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


def fields_of(argument: str, value: str) -> tuple[Field, ...]:
    """(Bridge's configuration field, Python source text) that a Megatron-LM argument sets."""
    if argument in FIELD_VALUES:
        return FIELD_VALUES[argument]
    if is_environment_variable(argument):
        return ((f"env_vars.{argument.replace('-', '_')}", f'"{value}"'),)
    names = RENAMED_FIELDS.get(argument, (f"model.{argument.replace('-', '_')}",))
    return tuple((name, _python_value(argument, value)) for name in names)


def _python_value(argument: str, value: str) -> str:
    """Value of a Megatron-LM argument as Python source text: list, tuple, dtype, bool, literal."""
    if argument in LISTS:
        return f"[{', '.join(_python_literal(word) for word in value.replace(',', ' ').split())}]"
    if argument == "window-size":
        return f"({value.replace(',', ', ')})"
    if argument.endswith("-dtype"):
        return DTYPES[value]
    return (
        "True"
        if value in ("", "true", "True")
        else "False"
        if value == "false"
        else _python_literal(value)
    )


def _python_literal(word: str) -> str:
    """Number or list unchanged, other words in double quotes, as Python source text."""
    return word if _NUMBER.fullmatch(word) or word.startswith("[") else f'"{word}"'
