"""Reader of TRL's supervised fine-tuning: ``trl sft``, its script, and YAML of SFTConfig.

Source of names and defaults: TRL 1.0, trainer/base_config.py, trainer/sft_config.py,
trainer/model_config.py and scripts/sft.py
(https://huggingface.co/docs/trl/sft_trainer#trl.SFTConfig).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.framework_detection import FileKind, Signature
from shardwright.frameworks.settings.refuse_unpriced_settings import refusals, refused
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    name_set,
    names,
)
from shardwright.frameworks.transformers.convert_trainer_settings_and_strategy import is_on
from shardwright.frameworks.transformers.read import normalize_dtypes, set_default_peft_targets
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import (
    TrainerNames,
    files_of,
    trainer_reader,
)

_TRAINED: Final = ("sft",)
_OTHERS: Final = names("dpo grpo kto orpo cpo rloo reward ppo gkd xpo online_dpo nash_md bco prm")
_UNPADDED: Final = "batches without padding, of which the file does not say how full they are"


def _complete(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Complete TRL's settings in place: bf16 unless fp16, LoRA rank and targets; return notes."""
    normalize_dtypes(settings, devices)
    # bf16 is on where fp16 is not (base_config.py, __post_init__).
    if "bf16" not in settings and not is_on(settings, "fp16"):
        settings["bf16"] = "true"
    if is_on(settings, "lora") and "lora-rank" not in settings:
        settings["lora-rank"] = "16"
    if not is_on(settings, "lora"):
        settings.pop("lora-rank", None)
    return set_default_peft_targets(settings)


TRL: Final = trainer_reader(
    TrainerNames(
        framework="trl",
        defaults=MappingProxyType(
            {
                "per-device-train-batch-size": "8",
                "gradient-accumulation-steps": "1",
                "gradient-checkpointing": "true",
                "seq-len": "1024",
                "packing": "false",
                "weights": "fp32",
            }
        ),
        programs=MappingProxyType(
            dict.fromkeys(_OTHERS, "a loss of preferences, of rewards or of a teacher")
        ),
        source="https://huggingface.co/docs/trl/sft_trainer#trl.SFTConfig",
        refused=MappingProxyType(
            {
                **refusals(
                    {
                        "a loss of preferences with a reference model (DPO)": (
                            "beta precompute-ref-log-probs"
                        ),
                        "reinforcement learning": "reward-funcs num-generations reward-model-path",
                        "distillation": "teacher-model-name-or-path",
                        _UNPADDED: "padding-free",
                    }
                ),
                "dpoconfig.*": refused(
                    "a loss of preferences with a reference model (DPO)", "no value"
                ),
                "grpoconfig.*": refused("reinforcement learning", "no value"),
            }
        ),
        ignored=by_name(
            {
                "data": (
                    "dataset-mixture.* dataset-mixer.* dataset-kwargs.* chat-template"
                    " chat-template-path eos-token pad-token assistant-only-loss"
                    " completion-only-loss packing-strategy eval-packing shuffle-dataset"
                    " pad-to-multiple-of truncation-mode datasets dataset-text-field"
                ),
                "of another trainer's data": (
                    "lora-task-type num-proc ignore-bias-buffers bnb-4bit-quant-type"
                    " use-bnb-nested-quant"
                ),
                "what is logged": "log-completions",
            }
        ),
        settled=_complete,
    ),
    signature=Signature(
        kinds=frozenset({FileKind.COMMAND, FileKind.YAML, FileKind.PYTHON}),
        programs=frozenset(
            {
                *(f"trl {verb}" for verb in (*_TRAINED, *_OTHERS)),
                *(f"trl/scripts/{verb}.py" for verb in (*_TRAINED, *_OTHERS)),
            }
        ),
        own=name_set(
            "packing-strategy assistant-only-loss completion-only-loss dataset-kwargs.*"
            " dataset-mixture.* use-peft chat-template-path dataset-mixer.* sftconfig.*"
            " dpoconfig.* grpoconfig.* precompute-ref-log-probs reward-funcs num-generations"
            " dataset-text-field max-completion-length loss-type num-completions"
        ),
        files=files_of("config", "fsdp-config"),
    ),
    includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer"}),
    in_yaml=frozenset({"dataset-name", "max-seq-length", "max-length", "packing"}),
)
