"""Dropout probabilities that a published class applies in training, from config.json.

Training here applies none; a run reports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardwright.model.families.fields.rotary_fields import number_or_none
from shardwright.model.ir.model_graph import Model

FIELDS: Final = (
    *(
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "dropout",
        "dropout_rate",
        "embd_pdrop",
        "embedding_dropout",
    ),
    *("hidden_dropout", "hidden_dropout_prob", "layerdrop", "resid_pdrop", "residual_dropout"),
)
"""Probabilities of dropout of a language model (of whole layers: ``layerdrop``). Others, such as
``classifier_dropout``, are of heads that are not trained here."""
UNREAD: Final[Mapping[str, tuple[str, ...]]] = {
    "Ernie4_5ForCausalLM": ("attention_dropout",),
    "FalconForCausalLM": ("attention_dropout",),
    "NemotronHForCausalLM": ("hidden_dropout",),
    "Phi3ForCausalLM": ("embd_pdrop",),
}
"""Fields of a configuration class that its model does not use."""
_GPT2: Final = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
_T5: Final = {"dropout_rate": 0.1}
DEFAULTS: Final[Mapping[str, Mapping[str, float]]] = {
    "BertForMaskedLM": {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1},
    "GPT2LMHeadModel": _GPT2,
    "GPTBigCodeForCausalLM": _GPT2,
    "OPTForCausalLM": {"dropout": 0.1},
    "SeedOssForCausalLM": {"attention_dropout": 0.1, "residual_dropout": 0.1},
    "T5ForConditionalGeneration": _T5,
    "MT5ForConditionalGeneration": _T5,
    "UMT5ForConditionalGeneration": _T5,
}
"""Probabilities above 0 of the classes in Transformers 5.24 where a field is not written;
`tests.execute.test_config_fields` tries them."""
TOWER: Final = "vision_config"


def dropout_probabilities(
    config: Mapping[str, Any], *, model: Model
) -> tuple[tuple[str, float], ...]:
    """(field, probability) of each positive dropout, written or class default, sorted by field.

    Fields of an image tower follow their section's name.
    """
    probabilities = dict(
        _positive_probabilities(
            config, DEFAULTS.get(model.architecture, {}), unread=UNREAD.get(model.architecture, ())
        )
    )
    tower = config.get(TOWER)
    if isinstance(tower, Mapping):
        probabilities |= {
            f"{TOWER}.{name}": value
            for name, value in _positive_probabilities(tower, {}, unread=())
        }
    return tuple(sorted(probabilities.items()))


def _positive_probabilities(
    config: Mapping[str, Any], defaults: Mapping[str, float], *, unread: tuple[str, ...]
) -> Iterator[tuple[str, float]]:
    """Yield (field, probability) of positive dropouts, written or default, but not in `unread`."""
    for name in FIELDS:
        value = number_or_none(config.get(name, defaults.get(name)))
        if value and value > 0 and name not in unread:
            yield name, value
