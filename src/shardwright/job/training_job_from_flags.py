"""Training jobs from command-line flags, with all checks of their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardwright.dtype import Dtype
from shardwright.errors import UsageError, nearest
from shardwright.job.training_job import OF_TEXT, Optimizer, SequenceLength, TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass

MAX_TOKENS: Final = 2**32
MAX_SAMPLES: Final = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRecipe:
    """Number formats of a training recipe, such as ``bf16`` or ``fp8``.

    Args:
        compute: format of GEMMs.
        parameter: format of the working copy of parameters.
        activation: format of saved activations.
        master: format of the master copy; None = there is none.
        states: format of optimizer states.
    """

    compute: Dtype
    parameter: Dtype
    activation: Dtype
    master: Dtype | None = Dtype.FP32
    states: Dtype = Dtype.FP32


MAX_IMBALANCE: Final = 1000
"""Most devices that share the experts of a layer."""

PRECISIONS: Final = {
    "bf16": PrecisionRecipe(compute=Dtype.BF16, parameter=Dtype.BF16, activation=Dtype.BF16),
    "bf16-pure": PrecisionRecipe(
        compute=Dtype.BF16,
        parameter=Dtype.BF16,
        activation=Dtype.BF16,
        master=None,
        states=Dtype.BF16,
    ),
    "fp16": PrecisionRecipe(compute=Dtype.FP16, parameter=Dtype.FP16, activation=Dtype.FP16),
    "fp8": PrecisionRecipe(compute=Dtype.FP8, parameter=Dtype.BF16, activation=Dtype.BF16),
    "fp4": PrecisionRecipe(compute=Dtype.FP4, parameter=Dtype.BF16, activation=Dtype.BF16),
    "fp32": PrecisionRecipe(
        compute=Dtype.FP32, parameter=Dtype.FP32, activation=Dtype.FP32, master=None
    ),
    "tf32": PrecisionRecipe(
        compute=Dtype.TF32, parameter=Dtype.FP32, activation=Dtype.FP32, master=None
    ),
}
_OTHER_NAMES: Final = {
    "nvfp4": "fp4",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float8": "fp8",
}
"""Other names of recipes. NVIDIA's FP4 with blocks of 16 elements (NVFP4) is the only recipe of
four bits that frameworks train in."""
_NEAREST_RECIPE: Final = {
    "mxfp4": (
        "fp4, which is NVFP4; MXFP4 is a format of weights that are served: serve-simulate"
        " --precision 'experts=mxfp4'"
    ),
    "mxfp8": "fp8, with --pin fp8=mx for scales of blocks of 32",
    "int8": "fp8; int8 is a format of weights that are served: serve-simulate --precision int8",
    "int4": (
        "fp4; int4 is a format of weights that are served: serve-simulate --precision int4/bf16"
    ),
}
"""Format in which no recipe computes -> the recipe nearest to it, as a hint."""
_SEQUENCE_FLAGS: Final = {
    "text": "--seq-len",
    "encoder": "--encoder-len",
    "image": "--image-tokens",
}


def job_from_flags(
    *,
    seq_len: int,
    global_batch: int,
    precision: str = "bf16",
    gradient_wire: str = "",
    encoder_len: int = 0,
    image_tokens: int = 0,
    needed: Iterable[str] = (),
    dropout: bool = False,
    expert_imbalance: float = 1.0,
) -> TrainingJob:
    """Build the training job that command-line flags describe; the optimizer is AdamW.

    Optimizer states are in fp32 unless the precision says otherwise.

    Args:
        seq_len: tokens of a sample's text.
        global_batch: samples a step.
        precision: a recipe of `PRECISIONS`: ``fp8`` and ``fp4`` compute in them over bf16
            parameters and activations; ``bf16-pure`` updates bf16 parameters in place, with
            optimizer states in bf16 and no fp32 copy (``model.to(torch.bfloat16)``).
        gradient_wire: dtype of gradients on the network; empty = as the runtime accumulates them.
        encoder_len, image_tokens: tokens of a sample's other sequences; 0 = it has none.
        needed: sequences that the model runs over (``Block.sequence`` and ``Block.memory``); each
            must have a length.
        dropout: attention and hidden dropout are on.
        expert_imbalance: tokens of the busiest device's experts over the mean; 1 = tokens are
            spread evenly.

    Raises:
        UsageError: a number out of range, an unknown word, or a sequence without a length.
    """
    lengths = {
        "text": _checked_count(seq_len, flag="--seq-len", most=MAX_TOKENS),
        "encoder": _checked_count(encoder_len, flag="--encoder-len", most=MAX_TOKENS, least=0),
        "image": _checked_count(image_tokens, flag="--image-tokens", most=MAX_TOKENS, least=0),
    }
    _require_lengths(needed, lengths)
    recipe = _precision_recipe(precision)
    return TrainingJob(
        sequences=tuple(
            SequenceLength(name=name, tokens=tokens) for name, tokens in lengths.items() if tokens
        ),
        global_batch=_checked_count(global_batch, flag="--global-batch", most=MAX_SAMPLES),
        optimizer=Optimizer(master=recipe.master, states=(recipe.states, recipe.states)),
        compute=recipe.compute,
        parameter=recipe.parameter,
        activation=recipe.activation,
        gradient_wire=_dtype_by_name(gradient_wire, flag="--gradient-wire")
        if gradient_wire
        else None,
        dropout=dropout,
        expert_imbalance=_checked_imbalance(expert_imbalance),
    )


def _checked_count(value: object, *, flag: str, most: int, least: int = 1) -> int:
    """Return a flag's value if it is a whole number from `least` to `most`; else UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(
            f"{flag} {_value_text(value)}", hint=f"a whole number from {least} to {most}"
        )
    return value


def _checked_imbalance(value: object) -> float:
    """Return the value of ``--expert-imbalance`` if it is in its range; else UsageError."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 1.0 <= value <= MAX_IMBALANCE
    ):
        raise UsageError(
            f"--expert-imbalance {_value_text(value)}",
            hint=f"the busiest device's tokens over the mean, from 1 to {MAX_IMBALANCE}",
        )
    return float(value)


def _require_lengths(needed: Iterable[str], lengths: dict[str, int]) -> None:
    """Raise UsageError if a sequence that the model runs over has no length in `lengths`."""
    for name in needed:
        if not name or name in OF_TEXT:
            continue
        flag = _SEQUENCE_FLAGS.get(name)
        if flag is None:
            raise UsageError(
                f"the model runs over a sequence {name!r}, which a job cannot give",
                hint=nearest(name, lengths),
            )
        if not lengths[name]:
            raise UsageError(
                f"the model needs the length of its {name} sequence", hint=f"give {flag}"
            )


def _precision_recipe(precision: str) -> PrecisionRecipe:
    """Number formats of a training precision by its name, such as fp8; UsageError if unknown."""
    word = precision.strip().lower()
    recipe = PRECISIONS.get(_OTHER_NAMES.get(word, word))
    if word in _NEAREST_RECIPE:
        raise UsageError(
            f"no training recipe computes in {word}", hint=f"--precision {_NEAREST_RECIPE[word]}"
        )
    if recipe is None:
        raise UsageError(
            f"unknown precision {precision[:40]!r}", hint=nearest(precision[:40], PRECISIONS)
        )
    return recipe


def _dtype_by_name(name: str, *, flag: str) -> Dtype:
    """Number format by its name; UsageError if unknown."""
    names = {dtype.value: dtype for dtype in Dtype}
    dtype = names.get(name.strip().lower())
    if dtype is None:
        raise UsageError(f"{flag}: unknown dtype {name[:40]!r}", hint=nearest(name[:40], names))
    return dtype


def _value_text(value: object) -> str:
    """Text of a flag's value for an error message, cut at 40 characters."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "is too large"
    return repr(value)[:40]
