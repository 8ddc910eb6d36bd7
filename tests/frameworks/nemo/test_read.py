"""NeMo's YAML: settings that mean something only beside others."""

from __future__ import annotations

import pytest

from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model

BASE = (
    "trainer: {{precision: bf16}}\nmodel:\n  micro_batch_size: 1\n  global_batch_size: 64\n "
    " encoder_seq_length: 4096\n{}"
)


def read(more: str) -> Launch:
    return launch_of_files(
        [("a.yaml", BASE.format(more))], model=load_model("llama-2-7b"), devices=8, framework="nemo"
    )


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        ("  fp8: false\n  fp8_e4m3: false\n  fp8_hybrid: true\n", "bf16"),
        ("  fp8_hybrid: true\n", "bf16"),
        ("  fp8: true\n  fp8_hybrid: true\n", "fp8"),
        ("  fp8: true\n  fp8_e4m3: true\n", "fp8"),
        ("", "bf16"),
    ],
)
def test_a_format_of_8_bits_says_nothing_where_8_bits_are_off(more: str, precision: str) -> None:
    """As in the published files of GPT-3 175B and Mixtral 8x7B: fp8_hybrid is the format that fp8
    would have."""
    assert read(more).precision == precision


@pytest.mark.parametrize(("value", "dtype"), [("bf16", ""), ("fp32", "fp32"), ("32", "fp32")])
def test_the_dtype_in_which_gradients_are_reduced(value: str, dtype: str) -> None:
    """NeMo's own is bf16."""
    found = read(f"  optim: {{name: distributed_fused_adam, grad_sync_dtype: {value}}}\n")
    assert dict(found.grid.options).get("grad_dtype", "") == dtype
    (setting,) = (one for one in found.settings if one.name.endswith("grad-sync-dtype"))
    assert (setting.verdict, setting.means) == (Verdict.UNDERSTOOD, "sets grad_dtype")
