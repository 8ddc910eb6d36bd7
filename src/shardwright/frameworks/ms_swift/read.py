"""ms-swift's ``swift sft`` and ``swift pt``; its ``megatron sft`` and ``megatron pt``.

Source of names and defaults: ms-swift 4.3, docs/source_en/Instruction/Command-line-parameters.md,
docs/source_en/Megatron-SWIFT/Command-line-parameters.md and swift/config
(https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_claims import (
    FileKind,
    Signature,
)
from shardwright.frameworks.launch.launch import Launch, LaunchReader, Written, assumed
from shardwright.frameworks.launch.lora_adapters import adapters_of
from shardwright.frameworks.megatron.field_names import attention_backend
from shardwright.frameworks.megatron.read import USUAL_RUNTIME, Dialect, read_arguments
from shardwright.frameworks.settings.name_lists import by_name, name_set
from shardwright.frameworks.settings.unpriced_settings import OPTIMIZER, refusals, refuse, refused
from shardwright.frameworks.settings.value_forms import count
from shardwright.frameworks.transformers.read import normal
from shardwright.frameworks.transformers.trainer_reader import (
    Words,
    files_of,
    of_own_runtimes,
    read_trainer,
)
from shardwright.frameworks.transformers.trainer_strategy import FSDP
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import Arguments
from shardwright.strategy.grid.grid import Grid

_STAGE: Final = "zero-optimization.stage"
_OPTIMIZER: Final = "zero-optimization.offload-optimizer.device"
_PARAMETERS: Final = "zero-optimization.offload-param.device"
_OFF: Final = {"zero-optimization.overlap-comm": "false"}
DEEPSPEED_FILES: Final = MappingProxyType(
    {
        **{f"zero{stage}": {_STAGE: str(stage), **_OFF} for stage in range(4)},
        "zero2_offload": {_STAGE: "2", _OPTIMIZER: "cpu", **_OFF},
        "zero3_offload": {_STAGE: "3", _OPTIMIZER: "cpu", _PARAMETERS: "cpu", **_OFF},
    }
)
"""The settings behind each value of ``--deepspeed`` (swift/config)."""
_VERBS: Final = ("sft", "pt", "rlhf")
_WANTED: Final = 16
"""Samples of a step that the framework accumulates where nothing says how many microbatches."""
DOCS: Final = "https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html"
_UNPADDED: Final = "batches without padding, of which the command does not say how full they are"


def _settled(said: dict[str, str], devices: int) -> tuple[str, ...]:
    notes = (
        []
        if "weights" in said
        else [f"assumed: torch_dtype bfloat16, as the model's config.json has it ({DOCS})"]
    )
    said.setdefault("weights", "bf16")
    normal(said, devices)
    # The number format of products follows from that of the weights
    # (arguments/base_args/model_args.py, _init_torch_dtype).
    if not {"bf16", "fp16"} & said.keys():
        said["fp16" if said["weights"] in ("fp16", "fp32") else "bf16"] = "true"
    if said.get("fsdp", "").strip() == "fsdp2":
        said |= {
            "fsdp": "full_shard auto_wrap",
            "fsdp.activation-checkpointing": "true",
            "gradient-checkpointing": "false",
        }
    if "ulysses" in said:
        devices //= max(count(said, "ulysses"), 1)
    if "gradient-accumulation-steps" not in said:
        micro = max(count(said, "per-device-train-batch-size", 1) * devices, 1)
        said["gradient-accumulation-steps"] = str(max(-(-_WANTED // micro), 1))
        notes.append(
            f"assumed: gradient_accumulation_steps {said['gradient-accumulation-steps']}, for at"
            f" least {_WANTED} samples a step ({DOCS})"
        )
    if said["tuner-type"] == "lora":
        said.setdefault("lora-rank", "8")
    else:
        said.pop("lora-rank", None)
    return tuple(notes)


_OF_BOTH: Final = refusals(
    {
        "a loss of preferences or rewards": "rlhf-type",
        "training a part of the parameters": (
            "freeze-parameters freeze-parameters-ratio trainable-parameters"
        ),
        "adapters by a pattern": "target-regex",
        "training without the language model": "freeze-llm",
    }
)
"""Refusals of ``swift`` and of ``megatron``."""
_TRAINER: Final = Words(
    framework="ms-swift",
    renamed=MappingProxyType(
        {
            "max-length": "seq-len",
            "train-type": "tuner-type",
            "sft-type": "tuner-type",
            "target-modules": "lora-target",
            "attn-impl": "attention",
            "sequence-parallel-size": "ulysses",
            "deepspeed-autotp-size": "tensor-parallel",
        }
    ),
    defaults=MappingProxyType(
        {
            "tuner-type": "lora",
            "per-device-train-batch-size": "1",
            "gradient-checkpointing": "true",
        }
    ),
    source=DOCS,
    programs=MappingProxyType({"rlhf": "a loss of preferences or rewards (swift rlhf)"}),
    deepspeed_files=DEEPSPEED_FILES,
    refused=MappingProxyType(
        {
            **_OF_BOTH,
            **refusals(
                {
                    "a model whose frozen weights are quantised (QLoRA)": "quant-bits quant-method",
                    "GaLore's optimizer": "use-galore",
                    "an optimizer of the framework's own": "optimizer",
                    "LISA's training of some layers": "lisa-activated-layers",
                    "adapters on parameters of experts": "target-parameters",
                    _UNPADDED: "padding-free",
                    "ZeRO++'s shards inside a node": "zero-hpz-partition-size",
                    "layers on several devices without a pipeline": "device-map",
                }
            ),
            **dict.fromkeys(
                ("tuner-type", "train-type", "sft-type"),
                refused("this kind of tuning", "lora", "full"),
            ),
            "attn-impl": refused(
                "an attention kernel that is not fused, or FlexAttention",
                "flash_attn",
                "flash_attention_2",
                "flash_attention_3",
                "sdpa",
            ),
            "task-type": refused("a loss other than of the next token", "causal_lm"),
        }
    ),
    ignored=by_name(
        {
            "data": (
                "dataset val-dataset split-dataset-ratio load-from-cache-file template system"
                " columns strict custom-* model-author model-name truncation-strategy"
                " lazy-tokenize use-hf packing-* loss-scale max-model-len agent-template"
                " cached-dataset streaming dataset-num-proc add-version model-kwargs"
                " response-prefix norm-bbox enable-thinking max-pixels"
            ),
            "the model, which MODEL says": (
                "model model-type model-revision task-type rope-scaling adapters freeze-vit"
                " freeze-aligner new-special-tokens"
            ),
            "how fast is learnt": "vit-lr aligner-lr lora-bias lorap-lr-ratio init-weights",
            "what is saved and logged": (
                "create-checkpoint-symlink swanlab-* use-logits-to-keep check-model"
            ),
            "how it starts": "ddp-* acc-strategy ignore-args-error use-ray",
        }
    ),
    settled=_settled,
)
_CORE: Final = Dialect(
    framework="ms-swift",
    arguments_of=lambda name, value: _core_words(name, value),
    defaults=MappingProxyType(
        {
            "attention-dropout": "0",
            "hidden-dropout": "0",
            "bf16": "true",
            "use-distributed-optimizer": "true",
            "micro-batch-size": "1",
            "global-batch-size": "16",
            "recompute-granularity": "selective",
            "attention-backend": "flash",
            "cross-entropy-loss-fusion": "true",
            "expert-tensor-parallel-size": "1",
            "moe-token-dispatcher-type": "alltoall",
        }
    ),
)
_CORE_REST: Final = name_set(
    "model model-type dataset val-dataset split-dataset-ratio"
    " load-from-cache-file save-safetensors packing num-train-epochs"
    " max-epochs output-dir eval-steps save-steps logging-steps"
    " dataloader-num-workers dataset-num-proc system model-author model-name"
    " template truncation-strategy streaming cached-dataset train-iters"
    " eval-iters save-total-limit load-safetensors mcore-model add-version"
    " use-hf max-model-len custom-dataset-info loss-scale packing-length"
    " packing-num-proc freeze-vit freeze-aligner tuner-type train-type"
    " target-modules lora-rank lora-alpha lora-dropout merge-lora"
    " agent-template columns shuffle-buffer-size lazy-tokenize model-kwargs"
    " enable-thinking report-to padding-free strict"
    " dataloader-persistent-workers dataloader-prefetch-factor group-by-length"
    " dataset-shuffle train-dataloader-shuffle metric-for-best-model load-args"
    " torch-dtype lr-warmup-fraction create-checkpoint-symlink"
    " cached-val-dataset rope-scaling gradient-accumulation-fusion"
    " vit-gradient-checkpointing initialize-embedding new-special-tokens"
    " save-interval eval-interval log-interval save ddp-timeout"
)
"""Settings of ``megatron sft`` that are the framework's own and change nothing here."""


def _core_words(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """A setting of ``megatron sft`` in Megatron-LM's words."""
    if name == "max-length":
        return (("seq-length", value),)
    if name == "virtual-pipeline-model-parallel-size":
        return (("num-virtual-stages-per-pipeline-rank", value),)
    if name == "cross-entropy-loss-fusion" and value.lower() == "true":
        return (("cross-entropy-loss-fusion", "true"),)
    if name == "attention-backend":
        return attention_backend(value)
    if name == "overlap-p2p-comm":
        return (("no-overlap-p2p-communication", str(value.lower() == "false").lower()),)
    if name in _CORE_REST:
        return ()
    return ((name, "true" if value == "True" else "false" if value == "False" else value),)


_CORE_REFUSED: Final = MappingProxyType(
    {
        **_OF_BOTH,
        **refusals(
            {
                "Muon's optimizer": "muon",
                "training whole modules beside adapters": "modules-to-save",
                "context parallelism that follows the data": "sequence-packing-scheduler",
            }
        ),
        **dict.fromkeys(
            ("tuner-type", "train-type"), refused("this kind of tuning", "lora", "full")
        ),
        "optimizer": OPTIMIZER,
        "task-type": refused("a loss other than of the next token", "causal_lm"),
    }
)


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.COMMAND}),
    programs=frozenset(
        {
            *(f"{word} {verb}" for word in ("swift", "megatron") for verb in _VERBS),
            *(f"swift/cli/{verb}.py" for verb in _VERBS),
            *(f"swift/cli/_megatron/{verb}.py" for verb in _VERBS),
        }
    ),
    files=files_of("", "config", own=DEEPSPEED_FILES),
)


def _read(written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
    """The launch that settings of the framework are."""
    if "megatron" not in written.program:
        return read_trainer(_TRAINER, written, model=model, devices=devices, runtime=runtime)
    if written.program.endswith(("rlhf", "rlhf.py")):
        raise DataError(
            f"{written.program[:40]}: a loss of preferences or rewards is not priced here",
            hint="megatron sft and megatron pt are",
        )
    refuse(written.arguments, _CORE_REFUSED)
    said = dict(written.arguments)
    own = USUAL_RUNTIME if runtime in ("", FSDP) else runtime
    launch = read_arguments(_CORE, written, model=model, devices=devices, runtime=own)
    unset = {
        name: value
        for name, value in _CORE.defaults.items()
        if name not in said and name not in _QUIET
    }
    notes = assumed(unset, DOCS, files="the command does")
    kind = said.get("tuner-type", said.get("train-type", "lora" if "lora-rank" in said else "full"))
    adapters = adapters_of(
        said.get("lora-rank", "8") if kind == "lora" else "",
        said.get("target-modules", "all"),
        model,
    )
    return replace(launch, train=adapters.train, notes=(*launch.notes, *notes, *adapters.notes))


def _settings_of(grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
    """A strategy in the settings of the framework."""
    return of_own_runtimes(_TRAINER, grid, runtime=runtime, global_batch=global_batch)


_QUIET: Final = ("attention-dropout", "hidden-dropout")
"""Defaults that are the model's."""
MS_SWIFT: Final = LaunchReader(
    name="ms-swift",
    runtime=FSDP,
    target="megatron",
    includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer", "megatron"}),
    signature=SIGNATURE,
    read=_read,
    settings_of=_settings_of,
    own_name=lambda name: name.replace("-", "_"),
)
