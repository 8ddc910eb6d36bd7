"""Table of MaxText's settings, and its names of models and mesh axes.

Source of names and defaults: MaxText 0.2.5, configs/base.yml and configs/types.py (`MaxTextConfig`
and its checks); of the mesh, `mesh_axes` of base.yml.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.settings.refuse_unpriced_settings import OF_OPTIMIZER, OPTIMIZER
from shardwright.frameworks.settings.setting_table import (
    KnownSetting,
    SettingTable,
    WhenWritten,
    setting_table,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import (
    SWITCH,
    TEXT,
    ValueForm,
    choice,
    require_value,
    switch,
    whole_number,
)
from shardwright.frameworks.settings.setting_verdicts import Verdict

AXES: Final[Mapping[str, str]] = {
    "expert": "expert",
    "tensor": "tensor",
    "tensor_sequence": "tensor_sequence",
    "context": "context",
    "fsdp": "fsdp",
    "stage": "pipeline",
    "data": "data",
}
"""Axes of its mesh from the innermost, and how its settings call them."""
PLACES: Final = ("ici", "dcn")
"""Parts of an axis: inside a slice, and between slices."""
SCHEDULES: Final = {False: ("gpipe",), True: ("breadth-first", "looped-bfs")}
"""Schedules of MaxText's pipelines, by whether a rank has several chunks: all microbatches pass
one repeat, then the next."""
MODELS: Final[Mapping[str, str]] = {
    "llama-2-7b": "llama2-7b",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-405b": "llama3.1-405b",
    "mistral-7b": "mistral-7b",
    "mixtral-8x7b": "mixtral-8x7b",
    "qwen2.5-1.5b": "qwen2.5-1.5b",
    "qwen2.5-7b": "qwen2.5-7b",
    "qwen2.5-14b": "qwen2.5-14b",
    "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-1.7b": "qwen3-1.7b",
    "qwen3-4b": "qwen3-4b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "deepseek-v2-lite": "deepseek2-16b",
    "deepseek-v2": "deepseek2-236b",
    "deepseek-v3-no-mtp": "deepseek3-671b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
}
"""Models of our catalog that its configs/models has."""


def _device_samples(name: str, value: str) -> float:
    """Parse ``per_device_batch_size``, samples a device, which may be a fraction."""
    text = require_value(name, value)
    try:
        return float(text)
    except ValueError:
        raise DataError(
            f"per_device_batch_size {text[:40]!r} is not a number", hint="such as 4, or 0.25"
        ) from None


_DEGREE: Final = ValueForm(
    read=lambda name, text: -1 if text.strip() == "-1" else whole_number(name, text), write=int
)
"""A degree of the mesh; -1 takes the devices that are left."""
_ALWAYS: Final = WhenWritten.ALWAYS
_STARTS, _MODEL, _AS_PLANNED = (
    "how it starts",
    "the model's",
    "formats and tiles, as the planner has them",
)


def _written_only_setting(name: str, reason: str) -> KnownSetting:
    """Setting that the exporter writes from the plan and the reader ignores, for `reason`."""
    return KnownSetting(name, reason, name, TEXT, verdict=Verdict.IGNORED)


SETTINGS: Final[SettingTable] = setting_table(
    _written_only_setting("base_config", _STARTS),
    _written_only_setting("model_name", _MODEL),
    _written_only_setting("hardware", _STARTS),
    KnownSetting(
        "dtype",
        _AS_PLANNED,
        "precision",
        choice({"bfloat16": "bf16", "float16": "fp16"}),
        verdict=Verdict.IGNORED,
    ),
    _written_only_setting("weight_dtype", _AS_PLANNED),
    _written_only_setting("grad_dtype", _AS_PLANNED),
    KnownSetting("quantization", "number format", "quantization", TEXT),
    KnownSetting("opt_type", OF_OPTIMIZER, "optimizer", TEXT),
    KnownSetting("max_target_length", "tokens of a sample", "seq_len", absent=0),
    KnownSetting(
        "per_device_batch_size",
        "samples of a step",
        "device_samples",
        ValueForm(read=_device_samples, write=float),
        1.0,
        _ALWAYS,
    ),
    KnownSetting(
        "gradient_accumulation_steps", "microbatches of a step", "steps", absent=1, when=_ALWAYS
    ),
    *(
        KnownSetting(f"{place}_{name}_parallelism", f"degree of {axis}", f"{place}_{axis}", _DEGREE)
        for axis, name in AXES.items()
        for place in PLACES
    ),
    KnownSetting("context_parallel_strategy", "ring, gather or Ulysses of cp", "contexts", TEXT),
    _written_only_setting("attention", _MODEL),
    KnownSetting(
        "use_tokamax_splash", _MODEL, "use_tokamax_splash", SWITCH, verdict=Verdict.IGNORED
    ),
    KnownSetting("num_layers_per_pipeline_stage", "layers of a chunk", "chunk_layers"),
    KnownSetting("num_pipeline_repeats", "vpp", "repeats"),
    KnownSetting("num_pipeline_microbatches", "microbatches of a step", "microbatches"),
    KnownSetting("shard_optimizer_over_data", "zero1", "is_sharded_over_data", SWITCH, False),
    KnownSetting(
        "optimizer_memory_host_offload",
        "optimizer states in host memory",
        "offload",
        switch(0, 100),
        0,
        _ALWAYS,
    ),
    KnownSetting("remat_policy", "recompute", "policy", TEXT, "full", _ALWAYS),
    version="0.2.5",
    ignored={
        _STARTS: "run-name base-output-directory compile-topology* log-period enable-*",
        "data": "dataset-* tokenizer-* vocab-size grain-* hf-* tfds-* eval-*",
        "how fast is learnt": (
            "steps learning-rate* warmup-steps-fraction adam-* gradient-clipping-threshold"
        ),
        "what is kept and logged": (
            "checkpoint-* async-checkpointing load-* save-* profiler* reuse-example-batch"
        ),
        _MODEL: "base-* head-dim mlp-activations rope-*",
        _AS_PLANNED: "sa-* use-iota-embed scan-layers",
    },
    refused=MappingProxyType({"opt-type": OPTIMIZER}),
)
