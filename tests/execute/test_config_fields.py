"""Every field of a published configuration is computed, without effect, or refused by name: the
page of verdicts holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("transformers", reason="Transformers is not installed")

from shardwright.execute.weights.family_parameter_names import FAMILY_NAMES
from shardwright.model.families import numerical_settings as model_settings
from tests.execute.field_verdicts import all_fields, architectures, families, listed, words_of
from tests.execute.flips import Ending, flips, verdict
from tests.execute.published_configs import PUBLISHED
from tests.execute.published_families import published_name
from tests.registries import place, require_same_members
from tests.tiers import in_both, many, random_of


def test_the_page_has_every_field_of_every_family() -> None:
    page = listed()
    require_same_members(
        page,
        families(),
        f"{place('docs/config-fields.md')}: run python -m tests.execute.field_verdicts",
    )
    assert set(map(published_name, families())) >= set(FAMILY_NAMES) - {"Gemma3ForCausalLM"}
    for architecture, config in families().items():
        assert set().union(*page[architecture].values()) == all_fields(config), architecture


def tried() -> list[Any]:
    """Every sixth family; in a proof all. Of those between some train in
    `test_published_training`."""
    return [
        pytest.param(name, marks=() if i % 6 == 1 else pytest.mark.proof)
        for i, name in enumerate(architectures())
    ]


@in_both
@pytest.mark.parametrize("architecture", tried())
def test_other_values_of_fields_end_as_the_page_says(tmp_path: Path, architecture: str) -> None:
    config, page = families()[architecture], listed()[architecture]
    base = verdict(config, tmp_path / "base")
    assert base.ending is Ending.EQUAL, base.said
    every = list(flips(config))
    for number, flip in enumerate(
        random_of(f"flips of {architecture}").sample(every, min(many(1, 10**6), len(every)))
    ):
        kind, _ = words_of(flip, verdict(flip.of(config), tmp_path / str(number)), base)
        # The page has the strongest verdict of a field: any value may be without effect, or not
        # taken.
        assert kind in ("without effect", "not taken") or flip.field in page.get(kind, ()), (
            f"{flip}: {kind}"
        )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [True, False, None])
def test_what_a_head_reads_is_scaled_as_a_t5_was_trained(
    tmp_path: Path, tied: bool, scaled: bool | None
) -> None:
    """Its class in Transformers has neither field: one it takes for the other, and writes that."""
    config = {
        **PUBLISHED["t5"],
        "dropout_rate": 0.0,
        "tie_word_embeddings": tied,
        **({} if scaled is None else {"scale_decoder_outputs": scaled}),
    }
    assert verdict(config, tmp_path).ending is Ending.EQUAL


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 50.0},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}},
        {"rope_scaling": None},
    ],
)
def test_layers_with_a_window_of_an_olmo3_turn_by_the_base_of_its_class(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    """What is written for all layers is of those without a window alone, as Transformers reads
    it."""
    found = verdict({**families()["Olmo3ForCausalLM"], **fields}, tmp_path)
    assert found.ending is Ending.EQUAL, found.said
    assert found.model is not None
    assert found.model.settings.local_rope_base == 500000.0


def test_a_field_that_is_not_read_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its factors Granite is another model."""
    monkeypatch.setattr(model_settings, "_factor", lambda fields, own, name: 1.0)
    assert verdict(families()["GraniteForCausalLM"], tmp_path).ending is Ending.OTHER
