"""Settings of verl's supervised fine-tuning: names and defaults."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.settings.refuse_unpriced_settings import refused
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import by_name
from shardwright.frameworks.transformers.reader_of_trainer_based_frameworks import TrainerNames
from shardwright.frameworks.verl.actor_settings import DOCS, device_count_notes, normalize_formats


def _normalize_fine_tuning(settings: dict[str, str], devices: int) -> tuple[str, ...]:
    """Rewrite fine-tuning's formats and set FSDP's full_shard in place; return notes."""
    normalize_formats(settings, devices)
    settings["fsdp"] = "full_shard"
    return device_count_notes(settings, devices)


FINE_TUNING: Final = TrainerNames(
    framework="verl",
    renamed=MappingProxyType(
        {
            "data.train-batch-size": "train-batch-size",
            "data.micro-batch-size-per-gpu": "per-device-train-batch-size",
            "data.micro-batch-size": "per-device-train-batch-size",
            "data.max-length": "seq-len",
            "ulysses-sequence-parallel-size": "ulysses",
            "model.enable-gradient-checkpointing": "gradient-checkpointing",
            "model.fsdp-config.model-dtype": "weights",
            "optim.optimizer": "optim",
            "model.fsdp-config.cpu-offload": "fsdp.offload-params",
            "model.fsdp-config.offload-params": "fsdp.offload-params",
            "model.lora-rank": "lora-rank",
            "model.target-modules": "lora-target",
        }
    ),
    defaults=MappingProxyType(
        {
            "train-batch-size": "256",
            "per-device-train-batch-size": "4",
            "seq-len": "1024",
            "gradient-checkpointing": "true",
            "weights": "fp32",
        }
    ),
    source=DOCS,
    refused=MappingProxyType(
        {"engine.*": refused("another engine of its fine-tuning", "no value")}
    ),
    ignored=by_name(
        {
            "data": "data.* use-remove-padding",
            "how fast is learnt": "optim.*",
            "how it starts, what is logged and saved": (
                "trainer.* hydra.* config-path config-name checkpoint.*"
            ),
            "the model, which MODEL says": (
                "model.partial-pretrain model.path model.trust-remote-code model.external-lib"
                " model.lora-alpha model.use-shm model.override-config.*"
                " model.fsdp-config.wrap-policy.* model.strategy"
            ),
        }
    ),
    unmodelled=by_name({"Liger's fused norms": "model.use-liger"}),
    settled=_normalize_fine_tuning,
)
