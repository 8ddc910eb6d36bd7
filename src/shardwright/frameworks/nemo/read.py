"""Reader of NeMo 1's YAML and of NeMo 2's recipe fields.

Source of the names: NeMo 1 (v1.23), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml;
NeMo 2 and Megatron-Core, megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.framework_detection import (
    FileKind,
    Signature,
)
from shardwright.frameworks.megatron.argument_names_of_core_fields import (
    FIELD_NAMES,
    OF_RECIPES,
    without_section,
)
from shardwright.frameworks.megatron.read import Dialect, dialect_reader
from shardwright.frameworks.settings.setting_table import KnownSetting, setting_table
from shardwright.frameworks.settings.setting_values_from_and_to_text import choice
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    name_set,
    names,
)

_NEMO_SECTIONS: Final = names(
    "model. model.optim. trainer. trainer.strategy. strategy. data. optim. megatron-cfg."
)


_NEMO_SWITCHES: Final = MappingProxyType(
    {
        "bias": ("disable-bias-linear", "false"),
        "share-embeddings-and-output-weights": ("untie-embeddings-and-output-weights", "false"),
        "overlap-p2p-comm": ("no-overlap-p2p-communication", "false"),
    }
)
"""NeMo's setting -> Megatron-LM's switch, and the setting's value at which the switch is on."""


_NEMO_PARTS: Final = ("tokenizer.", "sched.", "nsys-profile.", "data.")


_NEMO_REST: Final = name_set(
    "mcore-gpt megatron-amp-o2 pre-process post-process persist-layer-norm"
    " headscale transformer-block-type openai-gelu normalize-attention-scores"
    " attention-type use-scaled-init-method ffn-dropout onnx-safe"
    " apply-query-key-layer-scaling do-layer-norm-weight-decay"
    " native-amp-init-scale native-amp-growth-interval resume-from-checkpoint"
    " apex-transformer-log-level gradient-as-bucket-view gc-interval use-emha"
    " batch-p2p-comm num-micro-batches-with-partial-activation-checkpoints"
    " activations-checkpoint-layers-per-pipeline betas splits-string devices"
    " num-nodes accelerator logger enable-checkpointing"
    " use-distributed-sampler max-epochs max-steps max-time log-every-n-steps"
    " val-check-interval limit-val-batches limit-test-batches"
    " accumulate-grad-batches gradient-clip-val benchmark enable-model-summary"
    " contiguous-grad-buffer bucket-cap-mb skip-warmup index-mapping-dir"
    " data-prefix transformer-engine fp16-lm-cross-entropy sync-batch-comm"
    " grad-div-ar-fusion use-flash-attention masked-softmax-fusion"
    " bias-activation-fusion bias-dropout-add-fusion grad-reduce-in-fp32"
    " grad-allreduce-chunk-size-mb"
)
"""NeMo's settings that change neither time nor memory."""


def megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Megatron-LM's (argument, value) pairs of a NeMo setting; () if ignored, never None."""
    short = without_section(name, _NEMO_SECTIONS)
    if not name.startswith(_NEMO_SECTIONS):
        return ()
    if short == "precision":
        return (("fp16" if "16" in value and "bf" not in value else "bf16", "true"),)
    if short in ("fp8-e4m3", "fp8-hybrid"):
        # Which format, where `fp8` is on (megatron_gpt_model.py, build_transformer_config).
        return ()
    if short == "grad-sync-dtype":
        return (("grad-reduce-in-fp32", str("32" in value).lower()),)
    if short == "fp8":
        return (
            ("fp8-format", "hybrid" if value.lower() not in ("false", "null", "none") else "false"),
        )
    if short == "name" and name.endswith("optim.name"):
        sharded = str("distributed" in value or "mcore" in value).lower()
        return (("use-distributed-optimizer", sharded), ("optimizer", value))
    if short in ("overlap-grad-sync", "overlap-param-sync"):
        return (
            (
                {
                    "overlap-grad-sync": "overlap-grad-reduce",
                    "overlap-param-sync": "overlap-param-gather",
                }[short],
                value,
            ),
        )
    if short in _NEMO_SWITCHES:
        turned, of = _NEMO_SWITCHES[short]
        return ((turned, "true" if value.lower() == of else "false"),)
    if short == "normalization":
        return (
            (
                "normalization",
                {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}.get(value.lower(), value),
            ),
        )
    if short == "activation":
        return (
            ("swiglu", "true" if "swiglu" in value else "false"),
            ("squared-relu", "true" if value == "squared-relu" else "false"),
        )
    if short in _NEMO_REST or short.startswith(_NEMO_PARTS):
        return ()
    return ((FIELD_NAMES.get(short, short), value),) if FIELD_NAMES.get(short, short) else ()


NEMO: Final = dialect_reader(
    Dialect(
        framework="nemo",
        arguments_of=megatron_arguments,
        defaults=MappingProxyType(
            {
                "attention-dropout": "0",
                "hidden-dropout": "0",
                "moe-token-dispatcher-type": "alltoall",
            }
        ),
        own_defaults=True,
    ),
    runtime="nemo-24.11",
    settings=setting_table(
        KnownSetting(
            "trainer.precision", "", "precision", choice({"bf16-mixed": "bf16", "16": "fp16"})
        ),
        version="1.23",
    ),
    signature=Signature(
        kinds=frozenset({FileKind.YAML, FileKind.PYTHON, FileKind.COMMAND}),
        programs=frozenset({"megatron_gpt_pretraining.py"}),
        own=name_set(
            "trainer.num-nodes trainer.devices trainer.strategy.* exp-manager.*"
            " model.micro-batch-size"
        )
        | {"model.activations-checkpoint-granularity", "strategy.tensor-model-parallel-size"},
        shared=OF_RECIPES,
    ),
    own_name=lambda name: f"model.{name.replace('-', '_')}",
)
