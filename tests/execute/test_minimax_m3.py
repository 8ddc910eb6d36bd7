"""MiniMax-M3 under any cut, its two spellings, its files, and what its class in Transformers
computes whatever is written."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from shardwright.errors import DataError, ModelError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.numerics.layers.activation_functions import clamped_gate
from shardwright.execute.proof.prove_plan import prove_plan, random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
    step_differences,
)
from shardwright.execute.training.token_batches import open_tokens
from shardwright.execute.weights.parameter_slices_of_stored_tensors import stored_parameters
from shardwright.execute.weights.read_weights import open_weights
from shardwright.execute.weights.write_weights import save_weights
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import GridRotary, Settings
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.flips import Ending, Verdict, verdict
from tests.execute.published_configs import PUBLISHED
from tests.execute.published_images import MINIMAX_M3, MINIMAX_M3_TEXT
from tests.execute.published_sizes import Config
from tests.tiers import cases, in_both

TOKEN = MINIMAX_M3["image_token_index"]
SPARSE = {"use_sparse_attention": True, "sparse_attention_freq": [0, 0]}


def of_text(**more: object) -> Config:
    return {**MINIMAX_M3, "text_config": {**MINIMAX_M3_TEXT, **more}}


def of_tower(**more: object) -> Config:
    return {**MINIMAX_M3, "vision_config": {**MINIMAX_M3["vision_config"], **more}}


def model_of(config: Config) -> Model:
    return model_from_config(config, name="small-m3")


@cache
def small() -> Model:
    wide = {
        **of_tower(hidden_size=48, num_attention_heads=4, intermediate_size=32),
        "projector_hidden_size": 32,
    }
    text = {
        **MINIMAX_M3_TEXT,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "num_local_experts": 8,
    }
    kinds = {
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "layer_types": ["full_attention"] * 4,
    }
    return model_of(
        {
            **wide,
            "text_config": {
                **text,
                **kinds,
                "intermediate_size": 16,
                "shared_intermediate_size": 16,
            },
        }
    )


def job_of(*, text: int = 32, image: int = 64, samples: int = 8) -> TrainingJob:
    lengths = {"text": text, "image": image}
    return TrainingJob(
        sequences=tuple(SequenceLength(name=n, tokens=t) for n, t in lengths.items()),
        global_batch=samples,
    )


def two_stages(tower: str, text: str) -> str:
    return (
        "plan m3 devices 8\nlane main samples 8 in 2\n  stages"
        f" vision_embed+vision:2+projector+embed+2 on 0\n    {tower}\n  stages 2+head on 4\n   "
        f" {text}\norder 1f1b(main)\n"
    )


EXPERTS = "\n    router = s2\n    experts = e2"
CUTS = (
    ("all = t2\n    stream = s2", f"all = s2\n    core = s2 via ring{EXPERTS}"),
    (
        "all = s2\n    core = s2 via gather",
        "all = t2 s2\n    stream = s4\n    core = t2 s2 via ring",
    ),
    ("all = b2", "all = t4\n    stream = s4"),
    ("all = t4", f"all = t2\n    stream = s2{EXPERTS}"),
    ("all = b2 s2\n    core = b2 s2 via ring", "all = b4"),
)


@pytest.mark.parametrize(("tower", "text"), cases(CUTS, 1))
def test_a_split_step_is_that_of_one_device(tower: str, text: str) -> None:
    """Both products of the merge among them, whose tokens are of four patches each."""
    model, job, plan = small(), job_of(), parse_plan(two_stages(tower, text))
    batch, source = random_batch(model, job, seed=1), seeded(model, seed=1)
    whole = run_step(model, job, single_device_plan(model, job), batch=batch, source=source)
    parts = run_step(model, job, plan, batch=batch, source=source)
    assert float(parts.loss - whole.loss) == pytest.approx(0.0, abs=1e-12)
    assert max(difference for *_, difference in step_differences(parts, whole)) < 1e-12
    assert prove_plan(model, job, plan).equal


def test_a_clamped_gate_has_a_slope() -> None:
    x, y = torch.tensor([-2.0, 0.5, 3.0]), torch.tensor([0.25, -4.0, 4.0])
    found = clamped_gate(x, y, settings=Settings(gate_limit=2.0, gate_slope=0.5))
    gate, up = torch.tensor([-2.0, 0.5, 2.0]), torch.tensor([0.25, -2.0, 2.0])
    torch.testing.assert_close(found, gate / (1 + (-0.5 * gate).exp()) * (up + 1))
    usual = clamped_gate(x, y, settings=Settings(gate_limit=2.0))
    assert not torch.allclose(found, usual)


def test_both_spellings_are_one_model() -> None:
    """The published one, and that which Transformers writes."""
    other = {
        key: value
        for key, value in MINIMAX_M3_TEXT.items()
        if not key.endswith("_types") and key != "rope_parameters"
    }
    section = {
        **SPARSE,
        "sparse_num_index_heads": 4,
        "sparse_score_type": "max",
        "sparse_index_dim": 128,
        "sparse_local_block": 1,
        "sparse_init_block": 0,
    }
    rope = {"rope_theta": 100.0, "partial_rotary_factor": 0.5}
    published = {
        **other,
        **rope,
        "moe_layer_freq": [0, 1],
        "sparse_attention_config": section,
        "hidden_act": "swigluoai",
    }
    merged = {
        "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
        "rope_theta": 10000.0,
    }
    found = model_of({**of_tower(**merged), "text_config": published})
    assert found == model_of(MINIMAX_M3)
    assert not found.differs
    assert found.settings.of_block("vision").turns == GridRotary(axes=(2, 0, 1))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (of_text(moe_layer_freq=[1, 1]), "mlp_layer_types and moe_layer_freq disagree"),
        (
            of_text(sparse_attention_config={**SPARSE, "sparse_attention_freq": [0, 1]}),
            "layer_types and sparse_attention_config disagree",
        ),
        (
            of_text(
                layer_types=None,
                sparse_attention_config={
                    "use_sparse_attention": False,
                    "sparse_attention_freq": [0, 1],
                },
            ),
            "use_sparse_attention = false beside layers",
        ),
        (
            of_text(sparse_attention_config={**SPARSE, "sparse_init_block": 1}),
            "sparse_init_block other than 0",
        ),
        (
            of_text(sparse_attention_config={**SPARSE, "sparse_score_type": "sum"}),
            "sparse_score_type",
        ),
        (of_text(attention_output_gate=True), "attention_output_gate"),
        (
            of_tower(img_token_compression_config={"spatial_merge_size": 4}, spatial_merge_size=2),
            "spatial_merge_size is not that of",
        ),
        (
            of_tower(img_token_compression_config={"image_token_compression_method": "pool"}),
            "image_token_compression_method",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(config: Config, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        model_of(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (of_text(n_shared_experts=2), "n_shared_experts 2, where the published class has 1"),
        (
            of_text(use_routing_bias=False),
            "use_routing_bias False, where the published class has True",
        ),
        (of_text(scoring_func="softmax"), "scoring_func softmax"),
        ({**MINIMAX_M3, "multimodal_projector_bias": False}, "multimodal_projector_bias False"),
        ({**MINIMAX_M3, "projector_hidden_act": "relu"}, "projector_hidden_act relu"),
        (of_tower(rope_mode="2d"), "rope_mode 2d of a tower"),
    ],
)
def test_what_its_class_does_not_read_is_named(config: Config, said: str) -> None:
    assert any(said in phrase for phrase in model_of(config).differs)


@pytest.fixture(scope="module")
def usual_form(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    pytest.importorskip("transformers", reason="Transformers is not installed")
    return verdict(MINIMAX_M3, tmp_path_factory.mktemp("usual"))


@in_both
@pytest.mark.parametrize(
    "config",
    [
        of_tower(spatial_merge_size=4),
        of_tower(
            hidden_size=36,
            num_attention_heads=2,
            rope_parameters={"rope_type": "axial", "rope_theta": 5.0},
        ),
        of_text(layer_types=None, mlp_layer_types=None),
        of_text(
            tie_word_embeddings=True,
            num_hidden_layers=1,
            mlp_layer_types=["dense"],
            layer_types=["full_attention"],
        ),
    ],
    ids=["one token an image", "three axes of a head", "experts everywhere", "tied"],
)
def test_other_forms_are_those_of_transformers(
    tmp_path: Path, usual_form: Verdict, config: Config
) -> None:
    pytest.importorskip("transformers", reason="Transformers is not installed")
    found, usual = verdict(config, tmp_path / "one"), usual_form
    assert (found.ending, usual.ending) == (Ending.EQUAL, Ending.EQUAL), found.said
    assert abs(found.loss - usual.loss) > 1e-4


def test_experts_of_the_language_model_alone_are_one_tensor(tmp_path: Path) -> None:
    """(experts, out, in), gate before up: parts are read from their places."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PUBLISHED["minimax m3 alone"]))
    model = load_config(config)
    source = seeded(model, seed=3)
    save_weights(source, model=model, config=config, folder=tmp_path / "one", dtype=torch.float64)
    tensors = safetensors.load_file(tmp_path / "one" / "model.safetensors")
    up, down = (tensors[f"model.layers.2.mlp.experts.{name}_proj"] for name in ("gate_up", "down"))
    assert (tuple(up.shape), tuple(down.shape)) == ((4, 24, 32), (4, 32, 12))
    keys = {key[3]: key for key, _ in stored_parameters(model)}
    assert torch.equal(
        up[2],
        torch.cat(
            [source(keys["experts.up.weight"])[2], source(keys["experts.up.weight.1"])[2]], dim=1
        ).T,
    )
    weights = open_weights(tmp_path / "one", model=model, dtype=torch.float64)
    for key, _ in stored_parameters(model):
        torch.testing.assert_close(weights(key), source(key), rtol=0, atol=1e-15)
    box = (((1, 3),), ((5, 9),), ((2, 7),))
    assert torch.equal(
        weights.part(keys["experts.up.weight.1"], box),
        source(keys["experts.up.weight.1"])[1:3, 5:9, 2:7],
    )


def test_places_of_an_image_need_not_be_one_row(tmp_path: Path) -> None:
    """Words turn by their place in the text alone."""
    model, job = model_of(MINIMAX_M3), job_of(text=7, image=16, samples=2)
    files = {"text": tmp_path / "text.npy", "image": tmp_path / "image.npy"}
    window = [0, TOKEN, TOKEN, 7, TOKEN, TOKEN, 8]
    pixels = np.random.default_rng(3).standard_normal((4, 3, 12, 12))
    np.save(files["text"], np.array([*window * 4, 0], dtype=np.uint8))
    np.save(files["image"], pixels)
    batch = open_tokens(files, model=model, job=job).batch(1)
    patch = pixels[2, :, 3:6, :3]
    assert np.array_equal(
        batch["image"][0, 2].numpy(), np.stack([patch, patch], axis=1).reshape(-1)
    )
    np.save(files["text"], np.array([*window * 3, *[0] * 7, 0], dtype=np.uint8))
    with pytest.raises(DataError, match="window 3"):
        open_tokens(files, model=model, job=job)
