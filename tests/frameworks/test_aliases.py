"""Configuration files with YAML anchors: read as if each alias were written out."""

from __future__ import annotations

import pytest

from shardwright.errors import DataError
from shardwright.frameworks.documents.dotted_settings import settings_of_document
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.model.catalog.load_model_by_name import load_model

AXOLOTL = """base_model: &model meta-llama/Llama-3.1-8B
tokenizer_config: *model
datasets:
  - &data {path: a/b, type: alpaca}
  - {<<: *data, path: a/c}
sequence_len: &length 4096
eval_sequence_len: *length
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
LLAMA_FACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
defaults: &defaults {per_device_train_batch_size: 2, gradient_accumulation_steps: 4, bf16: true}
<<: *defaults
finetuning_type: full
cutoff_len: 4096
"""
TUNE = """model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: &n 4096}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true, max_seq_len: *n}
optimizer: {_component_: torch.optim.AdamW}
batch_size: &b 2
batch_size_val: *b
gradient_accumulation_steps: 4
"""


@pytest.mark.parametrize(
    ("name", "text"), [("axolotl", AXOLOTL), ("llama-factory", LLAMA_FACTORY), ("torchtune", TUNE)]
)
def test_a_launch_with_aliases_is_read(name: str, text: str) -> None:
    found = launch_of_files([("a.yaml", text)], model=load_model("llama-3.1-8b"), devices=4)
    assert (found.framework, found.seq_len, found.global_batch, found.grid.microbatch) == (
        name,
        4096,
        32,
        2,
    )


def test_a_small_file_of_many_aliases_is_one_line() -> None:
    text = "a0: &a0 [1,1,1,1,1,1,1,1,1]\n"
    text += "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    with pytest.raises(DataError, match="too long with its YAML aliases") as caught:
        settings_of_document(text, ".yaml", "a.yaml")
    assert "\n" not in str(caught.value)
