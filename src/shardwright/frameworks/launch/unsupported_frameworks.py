"""Frameworks that are recognised by their settings but have no reader, and are refused by name.

Source of the names: each framework's own examples, at the commits of 2025-10.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.framework_detection import FileKind, Signature, UnreadFramework
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set

_ALL: Final = (
    UnreadFramework(
        name="litgpt",
        signature=Signature(
            kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
            programs=frozenset(
                {
                    f"litgpt {verb}"
                    for verb in ("pretrain", "finetune", "finetune_lora", "finetune_full")
                }
            ),
            own=name_set(
                "train.lr-warmup-steps train.save-interval train.log-interval train.max-norm"
                " train.tie-embeddings"
            )
            | {
                "eval.initial-validation",
                "eval.max-new-tokens",
                "initial-checkpoint-dir",
                "lora-query",
                "lora-projection",
            },
        ),
    ),
    UnreadFramework(
        name="levanter",
        signature=Signature(
            kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
            programs=frozenset({"levanter.main.train_lm", "levanter/main/train_lm.py"}),
            own=name_set(
                "trainer.tracker.* trainer.mp trainer.train-batch-size"
                " trainer.tensor-parallel-axes trainer.mesh.*"
            ),
        ),
    ),
)
NOT_READ: Final[Mapping[str, UnreadFramework]] = MappingProxyType(
    {framework.name: framework for framework in _ALL}
)
