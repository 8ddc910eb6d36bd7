"""Checkpoints of Hugging Face families: read in slices, the published model's losses, written back
bit for bit, refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from math import pi
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from shardwright.errors import DataError
from shardwright.execute.device_state.stored_parameter_parts import box_slice, seeded, whole_shape
from shardwright.execute.numerics.positions.rotary_angles import rotary_rates
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.execute.weights import read_weights
from shardwright.execute.weights.family_parameter_names import FAMILY_NAMES
from shardwright.execute.weights.parameter_slices_of_stored_tensors import (
    adapter_keys,
    stored_parameters,
)
from shardwright.execute.weights.read_numerical_settings_from_config import stored_settings
from shardwright.execute.weights.read_weights import HuggingFaceWeights, open_weights
from shardwright.execute.weights.write_weights import save_weights
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.find_uncomputed_config_settings import differences
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from tests.execute.huggingface_layouts import CONFIGS, LAYOUTS, checkpoint
from tests.execute.huggingface_models import loss
from tests.execute.published_configs import PUBLISHED
from tests.execute.published_families import published_name
from tests.tiers import chosen, in_both

TOKENS = 7


def _opened(
    name: str, folder: Path, **more: Any
) -> tuple[Model, dict[str, torch.Tensor], HuggingFaceWeights]:
    tensors = checkpoint(name, folder, **more)
    model = load_config(folder / "config.json")
    return model, tensors, open_weights(folder, model=model, dtype=torch.float64)


def test_every_family_with_a_table_is_tried() -> None:
    """Those of `published_configs` against Transformers."""
    assert {
        published_name(config["architectures"][0])
        for config in (*LAYOUTS.values(), *PUBLISHED.values())
    } == set(FAMILY_NAMES)


FIRST = {config["architectures"][0]: name for name, config in reversed(CONFIGS.items())}
"""Of every family; other forms against Transformers alone, but in a proof."""
OTHERS = {"llama tied", "deepseek v3 halves", *(LAYOUTS.keys() - CONFIGS.keys())}
"""That lie otherwise in their files than the first of their family."""
SOME = chosen(LAYOUTS, {*FIRST.values(), *OTHERS})


@in_both
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.proof)
        for name in CONFIGS
    ],
)
def test_losses_are_those_of_the_published_model(tmp_path: Path, name: str) -> None:
    """Against plain torch over the tensors by their published names."""
    model, tensors, weights = _opened(name, tmp_path / "weights")
    settings = stored_settings(tmp_path / "weights", model=model)
    assert settings == model.settings, "from its configuration alone a model computes the same"
    ids = torch.randint(0, model.vocab, (2, TOKENS + 1), generator=torch.Generator().manual_seed(3))
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=TOKENS),), global_batch=2)
    batch = {"text": ids[:, :-1], "labels": ids[:, 1:]}
    result = run_step(
        model, job, single_device_plan(model, job), batch=batch, source=weights, settings=settings
    )
    assert float(result.loss) == pytest.approx(float(loss(name, tensors, ids)), abs=1e-10)
    # A norm far from 1 and a rotation of the wrong base would both be seen.
    (store,) = result.stores.values()
    assert all(
        torch.equal(held.value, weights(key))
        for key, boxes in store.held.items()
        for held in boxes.values()
    )


@pytest.mark.parametrize("name", SOME)
def test_what_is_read_is_written_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    model, tensors, weights = _opened(name, tmp_path / "weights", files=3)
    assert {key for key, _ in stored_parameters(model)}, "the model has parameters"
    files = save_weights(
        weights,
        model=model,
        config=tmp_path / "weights" / "config.json",
        folder=tmp_path / "out",
        dtype=torch.float64,
        shard_bytes=20_000,
    )
    assert len(files) > 1
    listed = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    written = {tensor: value for file in files for tensor, value in load_file(file).items()}
    assert set(written) == set(tensors) == set(listed)
    for tensor, value in tensors.items():
        # A gain that is stored less one loses a bit on the way.
        torch.testing.assert_close(
            written[tensor],
            value,
            rtol=0,
            atol=1e-15 if name.startswith("gemma") and "norm" in tensor else 0,
        )
        assert tensor in load_file(tmp_path / "out" / listed[tensor])
    again = open_weights(tmp_path / "out", model=model, dtype=torch.float64)
    assert all(
        torch.allclose(again(key), weights(key), rtol=0, atol=1e-15)
        for key, _ in stored_parameters(model)
    )


@pytest.mark.parametrize("name", SOME)
def test_a_part_is_the_slice_of_the_whole_and_reads_little_more(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes with gaps in every dim; elements that are fetched, against those that are asked for."""
    model, _, weights = _opened(name, tmp_path / "weights", dtype=torch.float32)
    fetched = []
    original = read_weights._to_our_dims

    def counted(values: torch.Tensor, *others: Any) -> torch.Tensor:
        fetched.append(values.numel())
        return original(values, *others)

    for key, _ in stored_parameters(model):
        whole = weights(key)
        shape = whole_shape(model, key)
        assert tuple(whole.shape) == shape
        box = tuple(((0, n // 4), (n // 2, n)) if n >= 4 else ((0, n),) for n in shape)
        with monkeypatch.context() as patch:
            patch.setattr(read_weights, "_to_our_dims", counted)
            fetched.clear()
            part = weights.part(key, box)
        assert torch.equal(part, box_slice(whole, box))
        assert sum(fetched) == part.numel()


def test_gains_of_gemma_are_stored_less_one(tmp_path: Path) -> None:
    model, tensors, weights = _opened("gemma2", tmp_path)
    key = next(key for key, _ in stored_parameters(model) if key[3] == "post_norm1.weight")
    assert torch.equal(weights(key), tensors["model.layers.0.post_attention_layernorm.weight"] + 1)


def test_values_are_read_in_the_dtype_of_the_run(tmp_path: Path) -> None:
    model, tensors, _ = _opened("llama", tmp_path, dtype=torch.bfloat16)
    weights = open_weights(tmp_path, model=model, dtype=torch.float32)
    key = next(key for key, _ in stored_parameters(model) if key[3] == "down.weight")
    assert weights(key).dtype == torch.float32
    assert torch.equal(weights(key), tensors["model.layers.0.mlp.down_proj.weight"].float().T)


def test_names_without_the_base_are_found(tmp_path: Path) -> None:
    """The files of GPT-2 that were first published leave ``transformer.`` out."""
    model, tensors, weights = _opened("gpt2", tmp_path / "new")
    _opened("gpt2", tmp_path / "old")
    save_file(
        {name.removeprefix("transformer."): value for name, value in tensors.items()},
        tmp_path / "old" / "model.safetensors",
    )
    again = open_weights(tmp_path / "old", model=model, dtype=torch.float64)
    assert all(torch.equal(again(key), weights(key)) for key, _ in stored_parameters(model))


def _refused(folder: Path, model: Model) -> str:
    with pytest.raises(DataError) as caught:
        open_weights(folder, model=model, dtype=torch.float32)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unusable_weights_are_refused_with_file_and_tensor(tmp_path: Path) -> None:
    model, tensors, _ = _opened("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert f"{path} is no whole safetensors file" in _refused(tmp_path, model)
    path.unlink()
    assert f"{path} is missing" in _refused(tmp_path, model)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({n: v for n, v in tensors.items() if n != name}, path)
    assert f"{path}: tensor {name} is missing" in _refused(tmp_path, model)
    save_file({**tensors, name: tensors[name][1:]}, path)
    assert f"{path}: tensor {name} has shape [19, 32], not [20, 32]" in _refused(tmp_path, model)
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, path)
    assert f"{path}: tensor {name} is stored as F8_E4M3" in _refused(tmp_path, model)
    save_file({n: v for n, v in tensors.items() if n != "lm_head.weight"}, path)
    assert "tie_word_embeddings" in _refused(tmp_path, model)
    path.write_bytes(whole)
    assert open_weights(tmp_path, model=model, dtype=torch.float32).files["lm_head.weight"] == (
        "model.safetensors",
        "lm_head.weight",
    )


def test_a_head_that_is_not_the_embedding_is_refused(tmp_path: Path) -> None:
    """Transformers keeps the two apart, whatever the configuration says: read as one, the model
    would be another."""
    model, tensors, _ = _opened("llama tied", tmp_path)
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors")
    assert open_weights(tmp_path, model=model, dtype=torch.float32).files
    save_file({**tensors, "lm_head.weight": embedding + 1}, tmp_path / "model.safetensors")
    assert "tensor lm_head.weight is not the embedding" in _refused(tmp_path, model)


def test_files_without_prediction_modules_are_of_the_model_without(tmp_path: Path) -> None:
    model, tensors, _ = _opened("deepseek v3 mtp", tmp_path / "in")
    config, path = tmp_path / "in" / "config.json", tmp_path / "in" / "model.safetensors"
    others = {n: v for n, v in tensors.items() if not n.startswith("model.layers.2.")}
    save_file(others, path)
    with pytest.raises(DataError, match="have nothing of the 1 prediction module") as caught:
        open_weights(tmp_path / "in", model=model, dtype=torch.float32)
    assert caught.value.hint == "plan the model without, and it is read: --train without:mtp"

    without = trained(model, "without:mtp")
    weights = open_weights(tmp_path / "in", model=without, dtype=torch.float64)
    (said,) = weights.remarks
    assert (
        said
        == f"the model is without the 1 prediction module that {config} names, of which its files"
        " have nothing"
    )
    (file,) = save_weights(
        weights, model=without, config=config, folder=tmp_path / "out", dtype=torch.float64
    )
    assert load_file(file).keys() == others.keys()
    again = load_config(tmp_path / "out" / "config.json")
    assert (again.blocks, again.runs) == (
        without.blocks,
        without.runs,
    ), "what is written says that it has no module"
    assert open_weights(tmp_path / "out", model=again, dtype=torch.float64).remarks == ()

    # Of a module that is there in part the rest is asked for, and one that is whole may be left out
    # too.
    lost = "model.layers.2.eh_proj.weight"
    save_file({n: v for n, v in tensors.items() if n != lost}, path)
    assert f"tensor {lost} is missing" in _refused(tmp_path / "in", model)
    save_file(tensors, path)
    (said,) = open_weights(tmp_path / "in", model=without, dtype=torch.float64).remarks
    assert said.endswith("config.json names, which is not trained")


def test_shards_and_their_index_are_checked(tmp_path: Path) -> None:
    model, tensors, _ = _opened("qwen3", tmp_path, files=3)
    index = tmp_path / "model.safetensors.index.json"
    good = index.read_text()
    shard = tmp_path / "model-00002-of-00003.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    assert f"{shard} is no whole safetensors file" in _refused(tmp_path, model)
    shard.write_bytes(content)
    with safe_open(shard, framework="pt") as file:
        lost, *_ = file.keys()
    save_file({n: v for n, v in load_file(shard).items() if n != lost}, shard)
    assert f"{shard}: tensor {lost} is missing" in _refused(tmp_path, model)
    index.write_text(good[:-20])
    assert f"{index} is not an index" in _refused(tmp_path, model)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "../elsewhere")}))
    assert "does not name files of this folder" in _refused(tmp_path, model)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    _opened("llama", tmp_path)
    for change, said in (
        ({"vocab_size": 20}, "vocabulary differ (19, not 20)"),
        ({"num_hidden_layers": 3}, "blocks in a row differ (4, not 5)"),
        ({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4}, "blocks differ"),
        (
            {"architectures": ["MistralForCausalLM"]},
            "architecture differ (LlamaForCausalLM, not MistralForCausalLM)",
        ),
    ):
        other = model_from_config(
            {**LAYOUTS["llama"], "sliding_window": None, **change}, name="other"
        )
        assert said in _refused(tmp_path, other)
    (tmp_path / "config.json").unlink()
    assert "config.json" in _refused(tmp_path, load_config_of("llama"))


def load_config_of(name: str) -> Model:
    return model_from_config(LAYOUTS[name], name=name)


def test_a_family_without_a_table_is_refused_by_name(tmp_path: Path) -> None:
    model = replace(load_config_of("llama"), architecture="MptForCausalLM")
    assert "weights of MptForCausalLM cannot be read or written" in _refused(tmp_path, model)
    with pytest.raises(DataError, match="LlamaForCausalLM"):
        save_weights(
            seeded(model, seed=0),
            model=model,
            config=tmp_path / "c",
            folder=tmp_path / "o",
            dtype=torch.float32,
        )


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    model, tensors, weights = _opened("llama", tmp_path / "in")
    with pytest.raises(DataError, match="exists"):
        save_weights(
            weights,
            model=model,
            config=tmp_path / "in" / "config.json",
            folder=tmp_path / "in",
            dtype=torch.float32,
        )
    (file,) = save_weights(
        weights,
        model=model,
        config=tmp_path / "in" / "config.json",
        folder=tmp_path / "out",
        dtype=torch.bfloat16,
    )
    assert torch.equal(load_file(file)["lm_head.weight"], tensors["lm_head.weight"].bfloat16())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "llama",
            {"rope_scaling": {"rope_type": "proportional", "factor": 8.0}},
            "rotary positions of kind proportional",
        ),
        ("llama", {"hidden_act": "mish"}, "activation mish"),
        ("llama", {"partial_rotary_factor": 0.5}, "rotary positions of 0.5 of a head"),
        ("deepseek v2", {"norm_topk_prob": True}, "norm_topk_prob true"),
        ("deepseek v3", {"scoring_func": "softmax"}, "scoring_func softmax"),
        (
            "deepseek v2",
            {"n_group": 2, "topk_group": 1, "topk_method": "greedy"},
            "topk_method greedy",
        ),
        ("gpt2", {"activation_function": "tanh"}, "activation tanh"),
        ("gemma", {"final_logit_softcapping": 30.0}, "final_logit_softcapping 30"),
        ("llama", {"residual_multiplier": 0.5}, "residual_multiplier 0.5"),
        (
            "llama",
            {"rope_parameters": {"sliding_attention": {"rope_theta": 10.0}}},
            "by type of layer",
        ),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            "kind yarn of layers with a window",
        ),
    ],
)
def test_what_we_do_not_compute_is_said(
    tmp_path: Path, name: str, change: dict[str, Any], said: str
) -> None:
    config = {**LAYOUTS[name], **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_config(tmp_path / "config.json")
    assert any(said in one for one in differences(config, model=model))
    with pytest.raises(DataError) as caught:
        stored_settings(tmp_path, model=model)
    assert said in str(caught.value)
    assert stored_settings(tmp_path, model=model, strict=False).eps > 0


def test_settings_are_read_in_both_spellings(tmp_path: Path) -> None:
    for spelled in (
        {"rope_theta": 500.0},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ):
        (tmp_path / "config.json").write_text(json.dumps({**LAYOUTS["llama"], **spelled}))
        settings = stored_settings(tmp_path, model=load_config_of("llama"))
        assert (settings.rope_base, settings.eps) == (500.0, 1e-6)
    (tmp_path / "config.json").unlink()
    with pytest.raises(DataError, match="No such file"):
        stored_settings(tmp_path, model=load_config_of("llama"))


LONGER = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_longer_rotary_positions_are_those_of_the_published_rule(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**LAYOUTS["llama"], "rope_theta": 1e4, "rope_scaling": LONGER})
    )
    settings = stored_settings(tmp_path, model=load_config_of("llama"))
    found = rotary_rates(settings, 16, device=torch.device("cpu"))
    kinds = set()
    for i, rate in enumerate(found.tolist()):
        plain = 1e4 ** (-i / 16)
        length = 2 * pi / plain
        if length < 64 / 4:
            kind, wanted = "kept", plain
        elif length > 64 / 1:
            kind, wanted = "slower", plain / 8
        else:
            smooth = (64 / length - 1) / (4 - 1)
            kind, wanted = "between", (1 - smooth) * plain / 8 + smooth * plain
        kinds.add(kind)
        assert rate == pytest.approx(wanted, rel=1e-14)
    assert kinds == {"kept", "slower", "between"}
    (tmp_path / "config.json").write_text(
        json.dumps(
            {**LAYOUTS["llama"], "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4}}
        )
    )
    linear = rotary_rates(
        stored_settings(tmp_path, model=load_config_of("llama")), 16, device=torch.device("cpu")
    )
    assert torch.equal(
        linear, rotary_rates(Settings(rope_base=1e4), 16, device=torch.device("cpu")) / 4
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"factor": None}, "factor"),
        ({"low_freq_factor": 4.0}, "not below high_freq_factor"),
        ({"high_freq_factor": "x"}, "high_freq_factor"),
    ],
)
def test_a_rule_of_longer_positions_that_lacks_a_number_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**LAYOUTS["llama"], "rope_scaling": {**LONGER, **change}})
    )
    with pytest.raises(DataError, match=said):
        stored_settings(tmp_path, model=load_config_of("llama"))


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.proof)])
def test_adapters_begin_as_the_published_model(tmp_path: Path, name: str) -> None:
    """Their second factor is zero; the file is not asked for them, and what is trained is theirs
    alone."""
    tensors = checkpoint(name, tmp_path / "weights")
    model = trained(load_config(tmp_path / "weights" / "config.json"), "lora:r2")
    weights = open_weights(tmp_path / "weights", model=model, dtype=torch.float64, seed=5)
    ids = torch.randint(0, model.vocab, (2, TOKENS + 1), generator=torch.Generator().manual_seed(3))
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=TOKENS),), global_batch=2)
    batch = {"text": ids[:, :-1], "labels": ids[:, 1:]}
    settings = stored_settings(tmp_path / "weights", model=model)
    result = run_step(
        model, job, single_device_plan(model, job), batch=batch, source=weights, settings=settings
    )
    assert float(result.loss) == pytest.approx(float(loss(name, tensors, ids)), abs=1e-10)
    (store,) = result.stores.values()
    assert {
        key
        for key, boxes in store.held.items()
        if any(held.gradient is not None for held in boxes.values())
    } == adapter_keys(model)
