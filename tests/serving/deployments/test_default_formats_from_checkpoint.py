"""A model is served in the formats of its checkpoint, unless the request names others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.simulate_deployment import serve_simulate
from shardwright.api.simulate_strategy_and_verify_stored import simulate
from shardwright.errors import InfeasibleError, ModelError
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.catalog.load_model_by_name import catalog_entry
from shardwright.search.search_request import Request
from shardwright.serving.simulation.serving_answer import ServingAnswer
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from tests.model.test_quantised import BLOCKS, LLAMA

SEVENTY_BILLION: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}


def config(folder: Path, quantised: dict[str, Any] | None) -> str:
    """A configuration of a model of 70B parameters on disk."""
    path = folder / "config.json"
    more = {} if quantised is None else {"quantization_config": quantised}
    path.write_text(json.dumps({**SEVENTY_BILLION, **more}))
    return str(path)


def served(model: str, cluster: str = "h100-sxm:1", *, precision: str = "") -> ServingAnswer:
    """A few requests of a model."""
    return serve_simulate(
        ServingRequest(
            model=model,
            cluster=cluster,
            isl="512",
            osl="16",
            concurrency=4,
            requests=8,
            precision=precision,
        )
    )


def test_weights_in_four_bits_fit_on_one_device(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError):
        served(config(tmp_path, None))
    answer = served(config(tmp_path, AWQ))
    assert answer.problem.job.precision.mlp.weights is NumberFormat.INT4
    assert answer.problem.job.precision.mlp.activations is NumberFormat.BF16
    # 68.45e9 weights of layers at 0.516 bytes, 2.1e9 of the embedding and the head at 2 bytes.
    assert answer.pools[0].memory.weights == pytest.approx(68.45e9 * 0.515625 + 2.1e9 * 2, rel=0.01)
    assert any("int4 (awq)" in note for note in answer.notes)


def test_a_request_overrules_the_checkpoint_and_the_answer_says_so(tmp_path: Path) -> None:
    answer = served(config(tmp_path, AWQ), "h100-sxm:8", precision="fp8")
    assert answer.problem.job.precision.mlp.weights is NumberFormat.FP8
    assert any("stores its weights in int4 (awq)" in note for note in answer.notes)
    same = served(config(tmp_path, BLOCKS), "h100-sxm:8", precision="fp8")
    assert not any("stores" in note for note in same.notes)


def test_deepseek_v3_as_published_fits_on_eight_h200() -> None:
    answer = served("deepseek-v3", "h200-sxm:8")
    assert answer.problem.job.precision.experts.weights is NumberFormat.FP8
    with pytest.raises(InfeasibleError):
        served("deepseek-v3", "h200-sxm:8", precision="bf16")


def test_the_published_checkpoint_and_its_configuration_are_served_alike(tmp_path: Path) -> None:
    path = tmp_path / "deepseek-v3" / "config.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps({**catalog_entry("deepseek-v3").config, "quantization_config": BLOCKS})
    )
    named, read = served("deepseek-v3", "h200-sxm:8"), served(str(path), "h200-sxm:8")
    assert read.problem.job.precision == named.problem.job.precision
    assert read.metrics.tokens_per_second == named.metrics.tokens_per_second


def test_a_method_without_priced_kernels_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="aqlm") as caught:
        served(config(tmp_path, {"quant_method": "aqlm"}), "h100-sxm:8")
    assert "--precision" in caught.value.hint
    assert served(
        config(tmp_path, {"quant_method": "aqlm"}), "h100-sxm:8", precision="bf16"
    ).metrics


def test_training_says_that_it_holds_other_weights_than_the_checkpoint(tmp_path: Path) -> None:
    """A quantised checkpoint is trained with weights in the job's format, as any other, and the
    prediction lists that as assumed."""

    def predicted(quantised: dict[str, Any] | None) -> tuple[float, list[str]]:
        folder = tmp_path / ("plain" if quantised is None else "quantised")
        folder.mkdir()
        request = Request(
            model=config(folder, quantised), cluster="h100-sxm:64", seq_len=2048, global_batch=64
        )
        found = simulate(request, strategy="tp8 sp pp4 dp2 mbs1 zero1")
        return found.step_time_s, [source.quantity for source in found.sources]

    plain_s, plain = predicted(None)
    quantised_s, quantised = predicted(AWQ)
    assert quantised_s == plain_s
    assert [name for name in quantised if name not in plain] == [
        "weights in bf16, though the checkpoint stores int4 (awq)"
    ]
