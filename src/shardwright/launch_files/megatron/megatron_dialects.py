"""Frameworks that run Megatron-Core, or Megatron-LM's own code, and say it in other words.

Source of the names: NeMo 1 (v1.23), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml;
NeMo 2 and Megatron-Bridge 0.6.2, megatron/bridge/training/config.py with
megatron/core/transformer/transformer_config.py; Megatron-DeepSpeed, megatron/arguments.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.export.bridge_fields import ELSEWHERE, MEANT
from shardwright.export.megatron_bridge import RECIPES
from shardwright.launch_files.launch.framework_claims import (
    NO_CLAIM,
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
    joined,
)
from shardwright.launch_files.megatron.argument_versions import meant
from shardwright.launch_files.megatron.megatron_reader import MEGATRON_SIGNATURE, MegatronReader
from shardwright.runtime.arguments import Arguments

_SHARED: Final = MappingProxyType(
    {
        "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
        "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
        "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
        "activations-checkpoint-granularity": "recompute-granularity",
        "activations-checkpoint-method": "recompute-method",
        "activations-checkpoint-num-layers": "recompute-num-layers",
        "sequence-length": "seq-length",
        "encoder-seq-length": "seq-length",
        "ub-tp-comm-overlap": "tp-comm-overlap",
        "gradient-accumulation-fusion": "",
        "ffn-hidden-size": "ffn-hidden-size",
        "hidden-dropout": "hidden-dropout",
        "attention-dropout": "attention-dropout",
        "moe-router-topk": "moe-router-topk",
        "num-moe-experts": "num-experts",
        "layernorm-epsilon": "norm-epsilon",
        "rotary-percentage": "rotary-percent",
    }
)
"""Words of several of them -> Megatron-LM's; empty = what changes nothing."""
_NEMO_SECTIONS: Final = (
    "model.",
    "model.optim.",
    "trainer.",
    "trainer.strategy.",
    "strategy.",
    "data.",
    "optim.",
    "megatron-cfg.",
)
_BRIDGE_SECTIONS: Final = (
    *(
        "model.",
        "train.",
        "ddp.",
        "optimizer.",
        "dataset.",
        "comm-overlap.",
        "dist.",
        "mixed-precision.",
        "rerun-state-machine.",
    ),
)


_NEMO_TURNED: Final = MappingProxyType(
    {
        "bias": ("disable-bias-linear", "false"),
        "share-embeddings-and-output-weights": ("untie-embeddings-and-output-weights", "false"),
        "overlap-p2p-comm": ("no-overlap-p2p-communication", "false"),
    }
)
"""NeMo's word -> Megatron-LM's switch, and the value at which it is on."""
_NEMO_PARTS: Final = ("tokenizer.", "sched.", "nsys-profile.", "data.")
_NEMO_REST: Final = frozenset(
    {
        *(
            "mcore-gpt",
            "megatron-amp-o2",
            "pre-process",
            "post-process",
            "persist-layer-norm",
            "headscale",
            "transformer-block-type",
        ),
        *(
            "openai-gelu",
            "normalize-attention-scores",
            "attention-type",
            "use-scaled-init-method",
            "ffn-dropout",
            "onnx-safe",
        ),
        *(
            "apply-query-key-layer-scaling",
            "do-layer-norm-weight-decay",
            "native-amp-init-scale",
            "native-amp-growth-interval",
        ),
        *(
            "resume-from-checkpoint",
            "apex-transformer-log-level",
            "gradient-as-bucket-view",
            "gc-interval",
            "use-emha",
            "batch-p2p-comm",
        ),
        *(
            "num-micro-batches-with-partial-activation-checkpoints",
            "activations-checkpoint-layers-per-pipeline",
            "betas",
            "splits-string",
        ),
        *(
            "devices",
            "num-nodes",
            "accelerator",
            "logger",
            "enable-checkpointing",
            "use-distributed-sampler",
            "max-epochs",
            "max-steps",
        ),
        *(
            "max-time",
            "log-every-n-steps",
            "val-check-interval",
            "limit-val-batches",
            "limit-test-batches",
            "accumulate-grad-batches",
        ),
        *(
            "gradient-clip-val",
            "benchmark",
            "enable-model-summary",
            "contiguous-grad-buffer",
            "bucket-cap-mb",
            "skip-warmup",
        ),
        *(
            "index-mapping-dir",
            "data-prefix",
            "transformer-engine",
            "fp16-lm-cross-entropy",
            "sync-batch-comm",
            "grad-div-ar-fusion",
        ),
        *(
            "use-flash-attention",
            "masked-softmax-fusion",
            "bias-activation-fusion",
            "bias-dropout-add-fusion",
            "grad-reduce-in-fp32",
        ),
        *("grad-allreduce-chunk-size-mb",),
    }
)
"""NeMo's settings that change nothing here."""


def attention_backend(value: str) -> tuple[tuple[str, str], ...]:
    """A kernel of attention as Megatron-Core names it: ``AttnBackend.flash`` and ``flash_3`` are
    ``flash``.
    """
    name = value.rpartition(".")[2].lower()
    return (("attention-backend", "flash" if name.startswith("flash") else name),)


def _stripped(name: str, sections: tuple[str, ...]) -> str:
    section = max((one for one in sections if name.startswith(one)), key=len, default="")
    return name.removeprefix(section)


def nemo(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """A setting of NeMo's YAML, or of its recipes."""
    short = _stripped(name, _NEMO_SECTIONS)
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
    if short in _NEMO_TURNED:
        turned, of = _NEMO_TURNED[short]
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
    return ((_SHARED.get(short, short), value),) if _SHARED.get(short, short) else ()


_FLAGSCALE_SECTIONS: Final = (
    "system.",
    "model.",
    "data.",
    "train.system.",
    "train.model.",
    "system.optimizer.",
    "model.optimizer.",
)


def flagscale(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """A setting of FlagScale's files, whose names are Megatron-LM's.

    Raises:
        DataError: stages of unlike degrees, which no grid says.
    """
    if name.endswith("hetero.enable-hetero") and value == "true":
        raise DataError(
            "stages of unlike degrees (hetero) are no grid",
            hint="a file without the section hetero",
        )
    if not name.startswith(("system.", "model.", "data.", "train.")):
        return ()
    return ((_stripped(name, _FLAGSCALE_SECTIONS), value),)


_FIELDS: Final = {
    field.replace("_", "-"): argument for argument, fields in ELSEWHERE.items() for field in fields
}
"""Field of Megatron-Bridge -> the argument that it is, of those with another name."""
_TURNED: Final = {
    field.replace("_", "-"): (argument, value.lower())
    for argument, fields in MEANT.items()
    for field, value in fields
    if value in ("True", "False") and "gated" not in field
}
"""Field -> the switch that it is, and the value at which that is on."""
_GATES: Final = {"f.silu": "swiglu", "squared-relu": "squared-relu", "squared_relu": "squared-relu"}
_PRECISIONS: Final = {recipe: word for word, recipe in RECIPES.items()}


def bridge(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """A setting of a Megatron-Bridge override; its fields are those that exports write
    (`export.bridge_fields`).
    """
    name = name.removeprefix("config.").replace("commoverlapconfig.", "comm-overlap.")
    if name in _TURNED:
        argument, on = _TURNED[name]
        return ((argument, str(value.lower() == on).lower()),)
    if name in _FIELDS:
        return ((_FIELDS[name], value),)
    if name == "mixed-precision":
        formats = (
            (("fp8-format", "hybrid"), ("fp8-recipe", _PRECISIONS.get(value, "delayed")))
            if "fp8" in value
            else ()
        )
        return ("fp16" if value.startswith("fp16") else "bf16", "true"), *formats
    if name == "model.attention-backend":
        return attention_backend(value)
    if name == "model.activation-func":
        return ((_GATES[value.lower()], "true"),) if value.lower() in _GATES else ()
    short = _stripped(name, _BRIDGE_SECTIONS)
    if name in ("model.gated-linear-unit", "comm-overlap.overlap-p2p-comm") or name.startswith(
        _BRIDGE_REST
    ):
        return ()
    if name.startswith("env-vars."):
        return ((short.removeprefix("env-vars."), value),)
    return ((_SHARED.get(short, short), value),) if _SHARED.get(short, short) else ()


_BRIDGE_REST: Final = (
    "checkpoint.",
    "scheduler.",
    "logger.",
    "rng.",
    "tokenizer.",
    "validation.",
    "profiling.",
)
"""Sections that change nothing here."""


def megatron_deepspeed(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """An argument of Megatron-DeepSpeed, or a setting of its DeepSpeed configuration; both say the
    stage of ZeRO.
    """
    if name in ("zero-stage", "zero-optimization.stage"):
        return (("zero-stage", value),)
    if name == "ds-sequence-parallel-size":
        return (("context-parallel-size", value), ("cp-comm-type", "a2a")) if value != "1" else ()
    if name == "num-key-value-heads":
        return (("group-query-attention", "true"), ("num-query-groups", value))
    if name in ("bf16.enabled", "fp16.enabled"):
        return ((name.partition(".")[0], value), (name, value))
    if name == "pp-partition-method" and "embedding" in value:
        return tuple(
            (f"account-for-{end}-in-pipeline-split", "true") for end in ("embedding", "loss")
        )
    if name in _OF_DEEPSPEED or "." in name:
        return ()
    return meant(name, value)


def with_bf16_optimizer(arguments: Arguments) -> Arguments:
    """Products in bf16 without ZeRO have an optimizer whose states are shared out as with stage 1
    (runtime/bf16_optimizer.py).
    """
    if arguments.get("bf16.enabled") == "true" and arguments.get("zero-stage", "0") == "0":
        return {**arguments, "zero-stage": "1"}
    return arguments


_OF_DEEPSPEED: Final = frozenset(
    {
        *(
            "deepspeed",
            "deepspeed-config",
            "deepspeed-activation-checkpointing",
            "train-batch-size",
            "train-micro-batch-size-per-gpu",
        ),
        *(
            "no-pipeline-parallel",
            "zero-allow-untested-optimizer",
            "train-batch-size",
            "lr-decay-tokens",
            "lr-warmup-tokens",
        ),
        *(
            "gradient-clipping",
            "steps-per-print",
            "wall-clock-breakdown",
            "pp-partition-method",
            "gradient-accumulation-steps",
        ),
    }
)
"""Settings of DeepSpeed's that repeat arguments, or change nothing."""


_OF_RECIPES: Final = frozenset(
    {"model.tensor-model-parallel-size", "model.pipeline-model-parallel-size", "model.seq-length"}
)
"""Settings of NeMo and of Megatron-Bridge alike."""
_MEGATRON_DEEPSPEED: Final = Signature(
    kinds=frozenset({FileKind.COMMAND}),
    own=frozenset(
        {
            "zero-stage",
            "pp-partition-method",
            "deepspeed-activation-checkpointing",
            "ds-sequence-parallel-size",
        }
    )
    | {"deepspeed", "deepspeed-config", "no-pipeline-parallel"},
    files=(
        NamedFile(
            setting="deepspeed-config", holds="the stage of ZeRO", instead=frozenset({"zero-stage"})
        ),
    ),
)


def _of_both(signature: Signature, document: Document) -> Claim:
    """DeepSpeed's arguments are those of any program that DeepSpeed starts; beside Megatron-LM's
    they are Megatron-DeepSpeed's.
    """
    own, of_megatron = claim_of(signature, document), claim_of(MEGATRON_SIGNATURE, document)
    return joined((own, of_megatron)) if own.evidence and of_megatron.evidence else NO_CLAIM


NEMO: Final = MegatronReader(
    name="nemo",
    runtime="nemo-24.11",
    signature=Signature(
        kinds=frozenset({FileKind.YAML, FileKind.PYTHON, FileKind.COMMAND}),
        programs=frozenset({"megatron_gpt_pretraining.py"}),
        own=frozenset(
            {
                "trainer.num-nodes",
                "trainer.devices",
                "trainer.strategy.*",
                "exp-manager.*",
                "model.micro-batch-size",
            }
        )
        | {"model.activations-checkpoint-granularity", "strategy.tensor-model-parallel-size"},
        shared=_OF_RECIPES,
    ),
    dialect=nemo,
    sparing=True,
    section="model.",
    defaults=MappingProxyType(
        {"attention-dropout": "0", "hidden-dropout": "0", "moe-token-dispatcher-type": "alltoall"}
    ),
)
BRIDGE: Final = MegatronReader(
    name="megatron-bridge",
    runtime="megatron-bridge",
    signature=Signature(
        kinds=frozenset({FileKind.YAML, FileKind.PYTHON, FileKind.COMMAND}),
        own=frozenset(
            {
                "train.global-batch-size",
                "train.micro-batch-size",
                "ddp.*",
                "comm-overlap.*",
                "commoverlapconfig.*",
            }
        )
        | {"config.train.micro-batch-size", "config.model.tensor-model-parallel-size"},
        shared=_OF_RECIPES,
    ),
    dialect=bridge,
    sparing=True,
    target="megatron-bridge",
    defaults=MappingProxyType(
        {
            "attention-dropout": "0",
            "hidden-dropout": "0",
            "bf16": "true",
            "use-distributed-optimizer": "true",
            "overlap-grad-reduce": "true",
        }
    ),
)
FLAGSCALE: Final = MegatronReader(
    name="flagscale",
    target="flagscale",
    signature=Signature(
        kinds=frozenset({FileKind.YAML}),
        own=frozenset({"system.*", "train.system.*", "experiment.task.backend"}),
        shared=frozenset({"model.micro-batch-size"}),
    ),
    dialect=flagscale,
)
MEGATRON_DEEPSPEED: Final = MegatronReader(
    name="megatron-deepspeed",
    runtime="deepspeed-2022",
    signature=_MEGATRON_DEEPSPEED,
    evidence=_of_both,
    includes=frozenset({"megatron", "deepspeed"}),
    dialect=megatron_deepspeed,
    settled=with_bf16_optimizer,
    refuses=False,
)
