"""Exporter of a Python module that gives a Megatron-Bridge recipe the plan's settings.

The settings are Megatron-LM's arguments of the plan (`megatron.plan_arguments`), each as
Megatron-Bridge's field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
    in_quotes,
    title,
)
from shardwright.frameworks.export.plan_runtime_options_as_flags import flag_pairs, option_values
from shardwright.frameworks.export.unsupported_plan_features import other_framework_shortfalls
from shardwright.frameworks.megatron.plan_arguments import (
    ASYNC,
    arguments,
    megatron_shortfalls,
    option_shortfalls,
)
from shardwright.frameworks.megatron_bridge.settings import RECIPES, SETTINGS, Field, fields_of
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import TpOverlap
from shardwright.runtime.list_and_set_runtime_options import runtime_with_options

MODULE, FUNCTION = "shardwright_plan", "plan"
FRAMEWORK: Final = "Megatron-Bridge"


DEFAULT_FIELDS: Final = {
    **dict.fromkeys(
        (
            "model.sequence_parallel",
            "dist.use_tp_pp_dp_mapping",
            "dist.use_megatron_fsdp",
            "ddp.use_megatron_fsdp",
        ),
        "False",
    ),
    **dict.fromkeys(
        ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"), "False"
    ),
    **dict.fromkeys(("optimizer.optimizer_cpu_offload",), "False"),
    **dict.fromkeys(
        ("model.recompute_granularity", "model.recompute_method", "model.recompute_num_layers"),
        "None",
    ),
    **dict.fromkeys(
        ("model.virtual_pipeline_model_parallel_size", "model.pipeline_model_parallel_layout"),
        "None",
    ),
    **dict.fromkeys(
        ("model.expert_model_parallel_size", "ddp.num_distributed_optimizer_instances"), "1"
    ),
}
"""Strategy fields -> value where a plan does not set them: a recipe may have other values."""


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that Megatron-Bridge cannot express, each with a substitute or a hint."""
    shortfalls = (
        *megatron_shortfalls(export),
        *option_shortfalls(export, FRAMEWORK, names=(ASYNC,)),
    )
    yield from shortfalls
    if all(shortfall.instead for shortfall in shortfalls):
        megatron = dict(arguments(export, FRAMEWORK))
        learned = megatron.get("position-embedding-type") == "learned_absolute"
        if learned and megatron["max-position-embeddings"] != megatron["seq-length"]:
            yield Shortfall(
                what=f"a table of {megatron['max-position-embeddings']} positions",
                instead="one of a sample's tokens",
            )
    yield from other_framework_shortfalls(export, FRAMEWORK)


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """Python module with the plan's settings."""
    return (ExportFile(name=f"{MODULE}.py", text=_module_text(export)),)


MEGATRON_BRIDGE: Final = Exporter(
    name="megatron-bridge",
    version=SETTINGS.version,
    summary="a Python module that makes a recipe's configuration the plan's",
    shortfalls=_shortfalls,
    files=_files,
)


def _config_fields(export: PlanToExport) -> dict[str, str]:
    """Field of Bridge's configuration -> Python source text, of the fields that the plan sets."""
    grid, runtime = export.grid, export.problem.runtime
    fields = dict(DEFAULT_FIELDS)
    for name, value in arguments(export, FRAMEWORK):
        fields |= dict(fields_of(name, value))
    if grid.pp > 1 and grid.vpp > 1:
        fields["model.virtual_pipeline_model_parallel_size"] = str(grid.vpp)
    if runtime.framework == FRAMEWORK:
        fields |= dict(_fields_switched_off(export))
        # Megatron-Bridge derives fields that are not set by rules of its own.
        options = runtime_with_options(runtime, grid.options)
        fields |= {
            "comm_overlap.tp_comm_overlap": str(
                options.tp_overlap is TpOverlap.FUSED and grid.tp > 1 and grid.sp
            ),
            "comm_overlap.overlap_p2p_comm": str(options.overlap_p2p and grid.vpp > 1),
            "comm_overlap.overlap_grad_reduce": str(options.overlap_grad_reduce),
            "comm_overlap.overlap_param_gather": str(
                options.overlap_param_gather and grid.zero > 0
            ),
        }
    return fields


_OPPOSITE: Final = {"True": "False", "False": "True"}


def _fields_switched_off(export: PlanToExport) -> Iterator[Field]:
    """Yield (field, opposite bool) of switches that the runtime has on and the plan changes."""
    runtime, values = export.problem.runtime, option_values(export, FRAMEWORK)
    for offer in runtime.offers:
        own = (offer.option, offer.value) in runtime.own
        if not own or values.get(offer.option, offer.value) == offer.value:
            continue
        for name, value in flag_pairs(offer.flag):
            if not value:
                on = fields_of(name.replace("_", "-"), "true")
                yield from (
                    (field, _OPPOSITE[megatron]) for field, megatron in on if megatron in _OPPOSITE
                )


def _precision(export: PlanToExport) -> str:
    """Name of Megatron-Bridge's precision for the plan's number format."""
    megatron = dict(arguments(export, FRAMEWORK))
    if "fp8-format" in megatron:
        return RECIPES[megatron.get("fp8-recipe", "delayed")]
    return "fp16_mixed" if "fp16" in megatron else "bf16_mixed"


def _module_text(export: PlanToExport) -> str:
    """Text of the Python module that defines the plan's configuration."""
    settings = _config_fields(export)
    made = f"Made by Shardwright for Megatron-Bridge {SETTINGS.version}."
    rows: list[Field] = sorted(settings.items(), key=lambda row: row[0].partition(".")[0])
    text = " ".join(settings.values())
    overlaps = any(name.startswith("comm_overlap.") for name in settings)
    lines = [
        f'"""{in_quotes(title(export))}. {made}',
        "",
        f"`{FUNCTION}` takes what a recipe of this model returns, before `pretrain` gets it.",
        "Data, tokenizer and learning rate stay the recipe's.",
        '"""',
        "",
        "from typing import Any",
        "",
        *(["import torch"] if "torch." in text else []),
        *(["import torch.nn.functional as F"] if "F." in text else []),
        *(["from megatron.core.activations import squared_relu"] if "squared_relu" in text else []),
        *(
            ["from megatron.bridge.training.comm_overlap import CommOverlapConfig"]
            if overlaps
            else []
        ),
        "from megatron.bridge.training.config import ConfigContainer",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "",
        "SETTINGS: dict[str, Any] = {",
        *(f'    "{name}": {value},' for name, value in rows),
        "}",
        '"""Fields of the configuration, by section."""',
        "",
        "",
        f"def {FUNCTION}(cfg: ConfigContainer) -> ConfigContainer:",
        (
            '    """The configuration with the plan\'s settings; a section without a field is of'
            ' another kind of model, and an error."""'
        ),
        f'    cfg.mixed_precision = get_mixed_precision_config("{_precision(export)}")',
        *(["    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)"] if overlaps else []),
        "    for name, value in SETTINGS.items():",
        '        section, _, field = name.partition(".")',
        "        part = getattr(cfg, section)",
        "        if isinstance(part, dict):",
        "            part[field] = value",
        "            continue",
        "        if not hasattr(part, field):",
        (
            '            raise AttributeError(f"{type(part).__name__} has no {field}: take a recipe'
            " of the plan's model\")"
        ),
        "        setattr(part, field, value)",
        "    return cfg",
        "",
    ]
    return "\n".join(lines)
