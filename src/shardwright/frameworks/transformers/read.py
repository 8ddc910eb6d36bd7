"""Transformers' Trainer: flags of Python scripts such as run_clm.py, JSON and YAML files of
arguments, and TrainingArguments(...).

Source of names and defaults: Transformers 4.57, training_args.py;
examples/pytorch/language-modeling/run_clm.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_claims import CONFIGURATIONS, FileKind, Signature
from shardwright.frameworks.settings.name_lists import names
from shardwright.frameworks.transformers.trainer_reader import Words, files_of, trainer_reader
from shardwright.frameworks.transformers.trainer_strategy import on

_PYTHON: Final = ("trainingarguments.", "seq2seqtrainingarguments.")
"""Prefixes of settings in a Python file that calls the class."""
_OWN: Final = names(
    "per-device-train-batch-size gradient-checkpointing num-train-epochs"
    " lr-scheduler-type ddp-timeout per-device-eval-batch-size logging-steps"
    " save-total-limit bf16-full-eval fsdp-transformer-layer-cls-to-wrap"
)
DOCS: Final = "https://huggingface.co/docs/transformers/main_classes/trainer"


def normal(said: dict[str, str], devices: int) -> tuple[str, ...]:
    """Words for dtypes as the planner has them."""
    named = {
        "bfloat16": "bf16",
        "torch.bfloat16": "bf16",
        "float32": "fp32",
        "torch.float32": "fp32",
        "float16": "fp16",
    }
    if "weights" in said:
        said["weights"] = named.get(said["weights"].lower(), said["weights"].lower())
    compiled = said.get("torch-compile", "").upper()
    if compiled not in ("", "TRUE"):
        said["torch-compile"] = str(compiled not in ("FALSE", "NO", "EAGER")).lower()
    return ()


def peft_targets(said: dict[str, str]) -> tuple[str, ...]:
    """Adapters without targets are where PEFT puts them (PEFT 0.17, utils/constants.py, of Llama,
    Mistral and Qwen).
    """
    if said.get("lora-rank", "0") == "0" or "lora-target" in said:
        return ()
    said["lora-target"] = "q_proj v_proj"
    return (
        "assumed: adapters on q_proj and v_proj, as PEFT has them where nothing is said "
        "(https://huggingface.co/docs/peft/package_reference/lora)",
    )


def _settled(said: dict[str, str], devices: int) -> tuple[str, ...]:
    """Notes on a launch whose settings are brought to canonical names in place, as `normal` does.

    Raises:
        DataError: a script of the user's own adds adapters, whose rank nothing says.
    """
    if on(said, "lora") and "lora-rank" not in said:
        raise DataError(
            "the launch trains adapters, and does not say their rank: the script has it",
            hint="--lora_r N beside the arguments",
        )
    if not on(said, "lora") and "lora" in said:
        said.pop("lora-rank", None)
    return (*normal(said, devices), *peft_targets(said))


TRANSFORMERS: Final = trainer_reader(
    Words(
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
        settled=_settled,
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
