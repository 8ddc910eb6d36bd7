"""The model that a launch says is compared with MODEL."""

from __future__ import annotations

import pytest

from shardwright.frameworks.launch.compare_model_sizes_in_settings_with_model import sizes_of
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model

NANOTRON = """parallelism: {dp: 2, tp: 2, pp: 1}
tokens: {micro_batch_size: 1, sequence_length: 2048}
model:
  dtype: bfloat16
  model_config: {MODEL}
"""
MAMBA = (
    "{d_model: 1024, num_hidden_layers: 48, vocab_size: 50277, is_mamba_config: true, ssm_cfg:"
    " {d_state: 16}}"
)
LLAMA = (
    "{hidden_size: 4096, num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8,"
    " intermediate_size: 14336}"
)
MAXTEXT = (
    "ici_fsdp_parallelism: -1\nper_device_batch_size: 1\nmax_target_length: 2048\nremat_policy:"
    " full\n"
)
TITAN = (
    '[model]\nname = "{}"\nflavor = "{}"\n[training]\nlocal_batch_size = 1\nseq_len ='
    " 2048\n[parallelism]\ntensor_parallel_degree = 2\n"
)


def read(name: str, text: str, *, model: str = "llama-3-8b") -> Launch:
    return launch_of_files([(name, text)], model=load_model(model), devices=4)


def other(launch: Launch) -> dict[str, str]:
    return {one.name.rpartition(".")[2]: one.means for one in launch.of(Verdict.DIFFERENT)}


def test_a_mamba_file_is_no_llama() -> None:
    found = other(read("mamba.yaml", NANOTRON.replace("{MODEL}", MAMBA)))
    assert found == {
        "d-model": "MODEL: 4096",
        "num-hidden-layers": "MODEL: 32",
        "is-mamba-config": "MODEL: no state-space layers",
        "d-state": "MODEL: no state-space layers",
    }


@pytest.mark.parametrize(
    ("model", "names"),
    [("llama-3-8b", set()), ("llama-2-7b", {"num-key-value-heads", "intermediate-size"})],
)
def test_sizes_of_nanotron_are_models(model: str, names: set[str]) -> None:
    assert set(other(read("llama.yaml", NANOTRON.replace("{MODEL}", LLAMA), model=model))) == names


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("model_name: llama3-8b\n", set()),
        ("model_name: llama3.1-8b\n", set()),
        ("model_name: llama3-70b\n", {"model-name"}),
        ("model_name: mixtral-8x7b\n", {"model-name"}),
        ("base_emb_dim: 4096\nbase_num_decoder_layers: 32\nbase_num_kv_heads: 8\n", set()),
        (
            "base_emb_dim: 2048\nbase_num_decoder_layers: 32\nnum_experts: 8\n",
            {"base-emb-dim", "num-experts"},
        ),
    ],
)
def test_maxtexts_model_is_models(said: str, names: set[str]) -> None:
    assert set(other(read("llama.yml", MAXTEXT + said))) == names


@pytest.mark.parametrize(
    ("module", "flavor", "model", "names"),
    [
        ("llama3", "8B", "llama-3.1-8b", set()),
        ("llama3", "8B", "llama-3-8b", set()),
        ("llama3", "70B", "llama-3.1-8b", {"name", "flavor"}),
        ("llama3", "debugmodel", "llama-3.1-8b", {"name", "flavor"}),
        ("deepseek_v3", "16B", "llama-3.1-8b", {"name", "flavor"}),
    ],
)
def test_torchtitans_model_is_models(module: str, flavor: str, model: str, names: set[str]) -> None:
    assert set(other(read("llama.toml", TITAN.format(module, flavor), model=model))) == names


def test_a_model_that_nobody_knows_by_name_is_told_as_not_compared() -> None:
    launch = read("llama.toml", TITAN.format("mine", "3B"), model="falcon-h1-7b")
    found = [one for one in launch.settings if one.name == "model.flavor"]
    assert [(one.verdict, "not compared" in one.means) for one in found] == [
        (Verdict.OF_THE_MODEL, True)
    ]


def test_sizes_of_a_mixture_have_no_one_feed_forward() -> None:
    assert "width of the feed-forward" not in sizes_of(load_model("mixtral-8x7b"))
    assert sizes_of(load_model("mixtral-8x7b"))["experts"] == 8
