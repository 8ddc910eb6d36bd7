"""Whole models of every text family of the catalog, on one device: loss and gradients equal
torch.autograd over a textbook's operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.model.ir.operator import OperatorKind
from tests.execute.chain import Chain
from tests.execute.small_models import small_model

MODELS = (
    "llama-7b",
    "mistral-7b",
    "phi-3-mini",
    "qwen2-7b",
    "qwen3-0.6b",
    "gemma-2b",
    "gemma-2-2b",
    "gemma-3-1b",
    "glm-4-9b",
    "glm-4-32b",
    "megatron-1.7b",
    "gpt-neox-20b",
    "opt-6.7b",
    "bloom-7b1",
    "mpt-7b",
    "falcon-7b",
    "falcon-40b",
    "nemotron-4-15b",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "glm-4.5",
    "gpt-oss-20b",
    "llama-4-scout-text",
    "llama-4-maverick-text",
    "mamba-codestral-7b",
    "jamba-v0.1",
    "falcon-h1-7b",
    "granite-4.0-h-small",
    "nemotron-h-56b",
    "nemotron-3-nano",
    "nemotron-3-super",
    "qwen3-next-80b-a3b",
    "minimax-m2.5",
    "mimo-7b",
    "mimo-v2-flash",
    "bert-base",
    "t5-11b",
    "t5-v1.1-xxl",
)


@pytest.mark.parametrize("name", MODELS)
def test_model_equals_autograd(name: str) -> None:
    generator = torch.Generator().manual_seed(7)
    chain = Chain(small_model(name))
    weights = chain.weights(generator)
    ids, labels = (
        torch.randint(0, chain.model.vocab, (2, 5, 1), generator=generator) for _ in range(2)
    )
    labels[0, 3] = -1
    loss, grads = chain.numbers(weights, ids, labels)
    expected, wanted = chain.reference(weights, ids, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    compared = 0
    for operator, key, _ in chain.steps:
        for parameter in operator.parameters:
            gradient = wanted[key][parameter.name]
            if gradient is None:
                assert parameter.name not in grads[key] or not grads[key][parameter.name].any()
            elif parameter.trainable:
                scale = max(1.0, gradient.abs().max().item())
                torch.testing.assert_close(
                    grads[key][parameter.name] / scale, gradient / scale, rtol=0, atol=1e-12
                )
                compared += 1
    assert compared > 5


def test_selected_keys_are_refused() -> None:
    chain = Chain(small_model("deepseek-v3.2"))
    assert any(operator.kind is OperatorKind.INDEX for operator, _, _ in chain.steps)
    ids = torch.zeros((2, 5, 1), dtype=torch.int64)
    with pytest.raises(StrategyError, match="cannot be executed"):
        chain.numbers(chain.weights(torch.Generator().manual_seed(1)), ids, ids)
