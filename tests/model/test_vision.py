"""Vision + language: a tower before the embedding, and the language model unchanged behind it."""

from __future__ import annotations

import pytest

from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import GridRotary, ImageInput, PositionGrid
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.stages.blocks_of_pipeline_chunks import chunk_contents
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from tests.model.extra_reference import block_of, changed, config_of, model_of, operator_of, refusal

FAMILIES = ("llava", "qwen3_vl", "qwen3_5_moe", "gemma4", "kimi_k25")


def tower(model: Model) -> int:
    names = ("vision_embed", "vision", "deep", "projector")
    return sum(
        model.blocks[r.block].num_parameters * r.count
        for r in model.runs
        if r.name.partition(".")[0] in names
    )


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "qwen3_vl"])
def test_the_runs_form_a_chain_from_image_to_text(name: str) -> None:
    model = model_of(name)
    chain = ["vision_embed", "vision", "projector", "embed"]
    assert [run.name for run in model.runs[:4]] == chain
    assert [run.inputs for run in model.runs[:4]] == [(), *((n,) for n in chain[:3])]
    embed = block_of(model, "embed")
    assert embed.memory == "image"
    assert operator_of(embed, "merge").inputs == (embed.operators[-2].name, "memory")


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "llava"])
def test_without_a_tower_the_language_model_is_left(name: str) -> None:
    assert (
        model_of(name).num_parameters - tower(model_of(name))
        == changed(name, vision_config=None).num_parameters
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_tower_and_projector_run_over_patches(name: str) -> None:
    of_tower = ("vision_embed", "vision", "deep", "projector")
    assert all((b.sequence == "image") is (b.name in of_tower) for b in model_of(name).blocks)


def test_a_patch_carries_its_share_of_a_merged_token() -> None:
    # Four patches of 32 elements become one token of 128; two layers, 128 to 128 and 128 to 48.
    block = block_of(model_of("kimi_k25"), "projector")
    up, down = operator_of(block, "up"), operator_of(block, "down")
    assert 4 * up.reads[0].size * up.writes[0].size == 128 * 128
    assert 4 * down.reads[0].size * down.writes[0].size == 128 * 48
    assert [sum(p.size for p in o.parameters) for o in (up, down)] == [
        128 * 128 + 128,
        128 * 48 + 48,
    ]


def test_every_patch_sees_the_whole_image() -> None:
    for name in FAMILIES:
        block = block_of(model_of(name), "vision")
        core = operator_of(block, "core").attention
        assert core is not None
        assert core.mask.value == "full"
        assert all(o.kind is not OperatorKind.LOSS for o in block.operators)


def test_deeper_features_go_round_the_chain_to_the_first_layers() -> None:
    """Features behind layers 1 and 3 of 5; the language model's layers 0 and 1 add them, and the
    other two are one run."""
    vision = {
        **config_of("qwen3_vl")["vision_config"],
        "depth": 5,
        "deepstack_visual_indexes": [1, 3],
    }
    text = {**config_of("qwen3_vl")["text_config"], "num_hidden_layers": 4}
    model = changed("qwen3_vl", vision_config=vision, text_config=text)
    inputs = {run.name: (run.count, run.inputs) for run in model.runs}
    assert inputs == {
        "vision_embed": (1, ()),
        "vision.0": (2, ("vision_embed",)),
        "vision.2": (2, ("vision.0",)),
        "vision.4": (1, ("vision.2",)),
        "deep.0": (1, ("vision.0",)),
        "deep.1": (1, ("vision.2",)),
        "projector": (1, ("vision.4",)),
        "embed": (1, ("projector",)),
        "layers.0": (1, ("embed", "deep.0")),
        "layers.1": (1, ("layers.0", "deep.1")),
        "layers.2": (2, ("layers.1",)),
        "head": (1, ("layers.2",)),
    }
    names = {run.name: i for i, run in enumerate(model.runs)}
    for layer in (0, 1):
        assert model.is_memory(names[f"layers.{layer}"], names[f"deep.{layer}"])
        assert model.blocks[model.runs[names[f"layers.{layer}"]].block].operators[-1].adds
    assert not model.joins_streams


def test_mergers_are_no_layers_of_a_pipeline() -> None:
    """They go with the projector, wherever a pipeline is cut."""
    vision = {
        **config_of("qwen3_vl")["vision_config"],
        "depth": 5,
        "deepstack_visual_indexes": [1, 4],
    }
    model = changed("qwen3_vl", vision_config=vision)
    layers = sum(run.count for run in model.runs if run.name.startswith("layers"))
    assert num_layers(model) == 5 + 1 + layers
    contents = chunk_contents(model, pp=5 + 1 + layers, vpp=1)
    named = [
        [(model.blocks[block].name, count) for block, count in content] for content in contents
    ]
    assert [("deep", 2), ("projector", 1)] in named


def test_features_that_are_not_listed_are_those_of_the_class() -> None:
    vision = {
        **config_of("qwen3_vl")["vision_config"],
        "depth": 27,
        "deepstack_visual_indexes": None,
    }
    stretches = [
        run.name
        for run in changed("qwen3_vl", vision_config=vision).runs
        if run.name.startswith("vision.")
    ]
    assert stretches == ["vision.0", "vision.9", "vision.17", "vision.25"]


@pytest.mark.parametrize("listed", [[3, 1], [1, 1], [1, 9], [0, 1, 2, 3]])
def test_features_that_no_layer_has_or_takes_are_refused(listed: list[int]) -> None:
    vision = {
        **config_of("qwen3_vl")["vision_config"],
        "depth": 4,
        "deepstack_visual_indexes": listed,
    }
    text = {**config_of("qwen3_vl")["text_config"], "num_hidden_layers": 3}
    assert "deepstack_visual_indexes" in refusal("qwen3_vl", vision_config=vision, text_config=text)


def test_deeper_features_have_projectors_of_their_own() -> None:
    vision = {**config_of("qwen3_vl")["vision_config"], "deepstack_visual_indexes": []}
    copy = 2 * 128 + 128 * 128 + 128 + 128 * 48 + 48
    assert (
        model_of("qwen3_vl").num_parameters
        - changed("qwen3_vl", vision_config=vision).num_parameters
        == 2 * copy
    )


def test_llava_runs_the_tower_up_to_the_feature_layer() -> None:
    counts = [changed("llava", vision_feature_layer=layer).runs[1].count for layer in (-1, -2, 3)]
    assert counts == [4, 3, 3]


@pytest.mark.parametrize(
    ("name", "section", "fields", "named"),
    [
        ("qwen3_vl", "vision_config", {"out_hidden_size": 40}, "vision_config.out_hidden_size"),
        ("qwen3_vl", "vision_config", {"num_heads": 5}, "vision_config.hidden_size"),
        ("qwen3_vl", "text_config", {"intermediate_size": None}, "text_config.intermediate_size"),
        ("kimi_k25", "vision_config", {"merge_kernel_size": [2]}, "merge_kernel_size"),
        ("kimi_k25", "vision_config", {"mm_projector_type": "mlp"}, "mm_projector_type"),
        ("llava", "vision_config", {"model_type": "siglip"}, "clip_vision_model"),
        ("llava", "text_config", {"model_type": "phi"}, "text_config.model_type"),
        (
            "gemma4",
            "text_config",
            {"hidden_size_per_layer_input": 8},
            "hidden_size_per_layer_input",
        ),
    ],
)
def test_errors_name_the_field_with_its_section(
    name: str, section: str, fields: dict[str, object], named: str
) -> None:
    assert named in refusal(name, **{section: {**config_of(name)[section], **fields}})


def test_audio_is_refused() -> None:
    assert "audio_config" in refusal("gemma4", audio_config={"hidden_size": 8})
    assert "vision_feature_layer" in refusal("llava", vision_feature_layer=-9)


PUBLISHED_NAMES = {
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
    "init_pos_emb_time": "pos_emb_time",
    "patch_size": "patch_size",
    "merge_kernel_size": "merge_kernel_size",
}
"""Fields of Kimi-K2.5's tower, and what Transformers calls them."""


def test_kimi_is_one_model_in_the_published_spelling_and_in_that_of_transformers() -> None:
    published = config_of("kimi_k25")
    vision = {
        **published["vision_config"],
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-3,
    }
    one = model_from_config(
        {**published, "media_placeholder_token_id": 7, "vision_config": vision}, name="kimi"
    )
    other = {
        "architectures": ["Kimi_K25ForConditionalGeneration"],
        "image_token_id": 7,
        "projection_hidden_size": 32,
        "projection_layer_norm_eps": 1e-3,
        "tie_word_embeddings": False,
        "text_config": published["text_config"],
        "vision_config": {name: vision[old] for old, name in PUBLISHED_NAMES.items()},
    }
    assert model_from_config(other, name="kimi") == one
    assert not one.unread
    assert not one.differs
    settings = one.settings
    assert settings.image == ImageInput(token=7, patch=(3, 4, 4), block=(2, 2), in_blocks=False)
    assert settings.of_block("vision").turns == GridRotary(axes=(1, 0), in_turns=True)
    assert settings.of_block("vision_embed").stretched == PositionGrid(
        rows=4, columns=4, cubic=True
    )
    assert settings.of_block("projector").of_block("norm").eps == 1e-3
    assert settings.of_block("projector").of_block("vision_norm").eps == 1e-5
    assert settings.of_block("projector.up").activation == "gelu"


@pytest.mark.parametrize(
    ("section", "fields", "named"),
    [
        ("vision_config", {"init_pos_emb_width": 5}, "a table of 4 x 5 positions"),
        ("vision_config", {"vt_num_attention_heads": 16}, "heads of 2 elements"),
        ("vision_config", {"mm_hidden_size": 48}, "vision_config.mm_hidden_size is not 32"),
        ("vision_config", {"text_hidden_size": 32}, "vision_config.text_hidden_size is not 48"),
        ("vision_config", {"merge_type": "mean"}, "merge_type"),
        ("vision_config", {"pos_emb_type": "learned"}, "pos_emb_type"),
        ("", {"projection_hidden_size": 16}, "projection_hidden_size is not 32"),
    ],
)
def test_what_kimis_tower_does_not_compute_is_refused(
    section: str, fields: dict[str, object], named: str
) -> None:
    changed_fields = {section: {**config_of("kimi_k25")[section], **fields}} if section else fields
    assert named in refusal("kimi_k25", **changed_fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"projector_hidden_act": "relu"}, "projector_hidden_act relu"),
        ({"hidden_act": "mish"}, "hidden_act of vision_config mish"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "rotary positions of kind linear in a tower",
        ),
    ],
)
def test_what_kimis_tower_computes_otherwise_is_said(fields: dict[str, object], said: str) -> None:
    model = changed("kimi_k25", vision_config={**config_of("kimi_k25")["vision_config"], **fields})
    assert any(said in one for one in model.differs)


def test_what_crosses_from_a_tower_is_one_row_for_each_image_token() -> None:
    for name, merged in (("llava", 1), ("qwen3_vl", 4), ("kimi_k25", 4)):
        model = model_of(name)
        assert block_of(model, "projector").output_width == model.hidden // merged
        merge = operator_of(block_of(model, "embed"), "merge")
        assert merge.memory_width == model.hidden // merged
