"""Frameworks whose files are known by what only they have, and are refused by name: no reader is here for them.

Source of the names: each framework's own examples, at the commits of 2025-10.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.launch_files.claims import CONFIGURATIONS, FileKind, NotRead, Signature

_ALL: Final = (
    NotRead(
        name="gpt-neox",
        signature=Signature(
            kinds=CONFIGURATIONS,
            own=frozenset({"pipe-parallel-size", "model-parallel-size", "partition-activations", "no-weight-tying", "gpt-j-residual"}),
        ),
        includes=frozenset({"deepspeed"}),
    ),
    NotRead(
        name="torchtune",
        signature=Signature(
            kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
            programs=frozenset({"tune run"}),
            own=frozenset({"model.-component-", "optimizer.-component-", "tokenizer.-component-", "dataset.-component-"}),
        ),
    ),
    NotRead(
        name="llama-factory",
        signature=Signature(
            kinds=frozenset({FileKind.YAML, FileKind.JSON, FileKind.COMMAND}),
            programs=frozenset({"llamafactory-cli train"}),
            own=frozenset({"finetuning-type", "cutoff-len", "preprocessing-num-workers"}),
        ),
        includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer"}),
    ),
    NotRead(
        name="axolotl",
        signature=Signature(
            kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
            programs=frozenset({"axolotl train", "axolotl.cli.train"}),
            own=frozenset({"base-model", "sequence-len", "sample-packing", "pad-to-sequence-len", "dataset-prepared-path"}),
        ),
        includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer"}),
    ),
    NotRead(
        name="ms-swift",
        signature=Signature(
            kinds=frozenset({FileKind.COMMAND}),
            programs=frozenset({f"{word} {verb}" for word in ("megatron", "swift") for verb in ("sft", "pt", "rlhf")}),
        ),
        includes=frozenset({"deepspeed", "accelerate", "huggingface-trainer", "megatron"}),
    ),
    NotRead(
        name="huggingface-trainer",
        signature=Signature(
            kinds=CONFIGURATIONS | {FileKind.COMMAND, FileKind.PYTHON},
            own=frozenset(
                {
                    *("per-device-train-batch-size", "trainingarguments.per-device-train-batch-size", "num-train-epochs"),
                    *("sftconfig.per-device-train-batch-size", "trainingarguments.output-dir", "sftconfig.output-dir"),
                }
            ),
        ),
        includes=frozenset({"deepspeed", "accelerate"}),
    ),
    NotRead(
        name="verl",
        signature=Signature(
            kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
            programs=frozenset({"verl.trainer.main-ppo", "verl.trainer.main_ppo"}),
            own=frozenset({"actor-rollout-ref.*"}),
        ),
    ),
)
NOT_READ: Final[Mapping[str, NotRead]] = MappingProxyType({one.name: one for one in _ALL})
