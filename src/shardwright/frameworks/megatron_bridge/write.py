"""Megatron-Bridge: a Python module whose function makes a recipe's configuration the plan's.

What is said is what Megatron's arguments say (`megatron_arguments`), each as the field that it is
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardwright.frameworks.export.common_shortfalls import another_framework
from shardwright.frameworks.export.exporter import (
    Exporter,
    ExportFile,
    Given,
    Shortfall,
    in_quotes,
    title,
)
from shardwright.frameworks.export.option_flags import flag_pairs, values_set
from shardwright.frameworks.megatron.plan_arguments import (
    ASYNC,
    arguments,
    megatron_shortfalls,
    unsaid_options,
)
from shardwright.frameworks.megatron_bridge.settings import (
    RECIPES,
    SETTINGS,
    Field,
    fields_of,
)
from shardwright.runtime.runtime import TpOverlap
from shardwright.runtime.runtime_options import runtime_with_options

MODULE, FUNCTION = "shardwright_plan", "plan"
FRAMEWORK: Final = "Megatron-Bridge"


UNSET: Final = {
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
"""Fields of a strategy at what a plan is that does not say them: a recipe may have them otherwise.
"""


def _shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a plan that Megatron-Bridge cannot express, each with the reason."""
    lacking = (*megatron_shortfalls(given), *unsaid_options(given, FRAMEWORK, names=(ASYNC,)))
    yield from lacking
    if all(one.instead for one in lacking):
        said = dict(arguments(given, FRAMEWORK))
        learned = said.get("position-embedding-type") == "learned_absolute"
        if learned and said["max-position-embeddings"] != said["seq-length"]:
            yield Shortfall(
                what=f"a table of {said['max-position-embeddings']} positions",
                instead="one of a sample's tokens",
            )
    yield from another_framework(given, FRAMEWORK)


def _files(given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan of which nothing, or only what may be lost, is lacking."""
    return (ExportFile(name=f"{MODULE}.py", text=_module(given)),)


MEGATRON_BRIDGE: Final = Exporter(
    name="megatron-bridge",
    version=SETTINGS.version,
    summary="a Python module that makes a recipe's configuration the plan's",
    shortfalls=_shortfalls,
    files=_files,
)


def _settings(given: Given) -> dict[str, str]:
    """Fields, with their values as Python."""
    grid, runtime = given.grid, given.problem.runtime
    found = dict(UNSET)
    for name, value in arguments(given, FRAMEWORK):
        found |= dict(fields_of(name, value))
    if grid.pp > 1 and grid.vpp > 1:
        found["model.virtual_pipeline_model_parallel_size"] = str(grid.vpp)
    if runtime.framework == FRAMEWORK:
        found |= dict(_switched_off(given))
        # What is not said there is found out by rules of its own.
        own = runtime_with_options(runtime, grid.options)
        found |= {
            "comm_overlap.tp_comm_overlap": str(
                own.tp_overlap is TpOverlap.FUSED and grid.tp > 1 and grid.sp
            ),
            "comm_overlap.overlap_p2p_comm": str(own.overlap_p2p and grid.vpp > 1),
            "comm_overlap.overlap_grad_reduce": str(own.overlap_grad_reduce),
            "comm_overlap.overlap_param_gather": str(own.overlap_param_gather and grid.zero > 0),
        }
    return found


_OPPOSITE: Final = {"True": "False", "False": "True"}


def _switched_off(given: Given) -> Iterator[Field]:
    """Switches that are on by themselves and off in the plan."""
    runtime, values = given.problem.runtime, values_set(given, FRAMEWORK)
    for offer in runtime.offers:
        own = (offer.option, offer.value) in runtime.own
        if not own or values.get(offer.option, offer.value) == offer.value:
            continue
        for name, value in flag_pairs(offer.flag):
            if not value:
                on = fields_of(name.replace("_", "-"), "true")
                yield from ((field, _OPPOSITE[said]) for field, said in on if said in _OPPOSITE)


def _precision(given: Given) -> str:
    said = dict(arguments(given, FRAMEWORK))
    if "fp8-format" in said:
        return RECIPES[said.get("fp8-recipe", "delayed")]
    return "fp16_mixed" if "fp16" in said else "bf16_mixed"


def _module(given: Given) -> str:
    settings = _settings(given)
    made = f"Made by Shardwright for Megatron-Bridge {SETTINGS.version}."
    rows: list[Field] = sorted(settings.items(), key=lambda row: row[0].partition(".")[0])
    text = " ".join(settings.values())
    overlaps = any(name.startswith("comm_overlap.") for name in settings)
    lines = [
        f'"""{in_quotes(title(given))}. {made}',
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
        f'    cfg.mixed_precision = get_mixed_precision_config("{_precision(given)}")',
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
