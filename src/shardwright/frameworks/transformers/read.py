"""Reader of Transformers' Trainer: script flags, argument files and TrainingArguments(...).

Source of names and defaults: Transformers 4.57, training_args.py;
examples/pytorch/language-modeling/run_clm.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_detection import CONFIGURATIONS, FileKind, Signature
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import is_on
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import (
    TrainerNames,
    files_of,
    trainer_reader,
)

_PYTHON: Final = ("trainingarguments.", "seq2seqtrainingarguments.")
"""Prefixes of settings in a Python file that calls the class."""
_OWN: Final = names(
    "per-device-train-batch-size gradient-checkpointing num-train-epochs"
    " lr-scheduler-type ddp-timeout per-device-eval-batch-size logging-steps"
    " save-total-limit bf16-full-eval fsdp-transformer-layer-cls-to-wrap"
)
DOCS: Final = "https://huggingface.co/docs/transformers/main_classes/trainer"


def normalize_dtypes(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Rewrite in place weights' dtype to bf16, fp16 or fp32, torch-compile to a bool; no notes."""
    named = {
        "bfloat16": "bf16",
        "torch.bfloat16": "bf16",
        "float32": "fp32",
        "torch.float32": "fp32",
        "float16": "fp16",
    }
    if "weights" in settings:
        settings["weights"] = named.get(settings["weights"].lower(), settings["weights"].lower())
    compiled = settings.get("torch-compile", "").upper()
    if compiled not in ("", "TRUE"):
        settings["torch-compile"] = str(compiled not in ("FALSE", "NO", "EAGER")).lower()
    return ()


def set_default_peft_targets(settings: dict[str, str]) -> tuple[str, ...]:
    """Set unset targets of LoRA with a rank to PEFT's default q_proj and v_proj; return a note.

    The default is that of Llama, Mistral and Qwen (PEFT 0.17, utils/constants.py).
    """
    if settings.get("lora-rank", "0") == "0" or "lora-target" in settings:
        return ()
    settings["lora-target"] = "q_proj v_proj"
    return (
        "assumed: adapters on q_proj and v_proj, as PEFT has them where nothing is said "
        "(https://huggingface.co/docs/peft/package_reference/lora)",
    )


def _normalize(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Rewrite dtypes and set LoRA's default targets in place; DataError without a rank; give notes.

    Raises:
        DataError: the launch trains LoRA adapters without a rank.
    """
    if is_on(settings, "lora") and "lora-rank" not in settings:
        raise DataError(
            "the launch trains adapters, and does not say their rank: the script has it",
            hint="--lora_r N beside the arguments",
        )
    if not is_on(settings, "lora") and "lora" in settings:
        settings.pop("lora-rank", None)
    return (*normalize_dtypes(settings, devices), *set_default_peft_targets(settings))


TRANSFORMERS: Final = trainer_reader(
    TrainerNames(
        framework="huggingface-trainer",
        defaults=MappingProxyType(
            {
                "per-device-train-batch-size": "8",
                "gradient-accumulation-steps": "1",
                "gradient-checkpointing": "false",
                "weights": "fp32",
            }
        ),
        source=DOCS,
        settled=_normalize,
    ),
    signature=Signature(
        kinds=CONFIGURATIONS | {FileKind.COMMAND, FileKind.PYTHON},
        programs=frozenset({"run_clm.py", "run_mlm.py", "run_seq2seq.py"}),
        own=frozenset(
            {*_OWN, *(f"{start}{name}" for start in _PYTHON for name in (*_OWN, "output-dir"))}
        ),
        files=files_of("", "fsdp-config"),
    ),
)
