"""Whole models of every family on one device: loss and every gradient equal torch.autograd over a textbook's operators."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.model.huggingface import model_from_config
from tests.execute.chain import Chain

SMALL = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 19,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], **SMALL},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_embd": 24, "n_head": 4, "n_layer": 2, "vocab_size": 19, "n_positions": 16},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], **SMALL, "head_dim": 8},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        **SMALL,
        "tie_word_embeddings": True,
        "head_dim": 8,
        "sliding_window": 3,
        "attn_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 8,
    },
    "bloom": {"architectures": ["BloomForCausalLM"], "hidden_size": 24, "n_head": 4, "n_layer": 2, "vocab_size": 19},
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 24,
        "d_kv": 6,
        "d_ff": 20,
        "num_heads": 4,
        "num_layers": 2,
        "vocab_size": 19,
        "feed_forward_proj": "gated-gelu",
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_model_equals_autograd(name: str) -> None:
    generator = torch.Generator().manual_seed(7)
    chain = Chain(model_from_config(CONFIGS[name], name=name))
    weights = chain.weights(generator)
    ids = torch.randint(0, chain.model.vocab, (2, 7, 1), generator=generator)
    labels = torch.randint(0, chain.model.vocab, (2, 7, 1), generator=generator)
    labels[0, 3] = -1
    loss, grads = chain.numbers(weights, ids, labels)
    expected, wanted = chain.reference(weights, ids, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    compared = 0
    for operator, key, _ in chain.steps:
        for parameter in operator.parameters:
            if wanted[key][parameter.name] is None:
                assert key not in grads or parameter.name not in grads[key] or not grads[key][parameter.name].any()
                continue
            scale = max(1.0, wanted[key][parameter.name].abs().max().item())
            torch.testing.assert_close(grads[key][parameter.name] / scale, wanted[key][parameter.name] / scale, rtol=0, atol=1e-11)
            compared += 1
    assert compared
