"""What lives by token and by sequence, against figures that are published or counted by hand."""

import pytest

from shardwright.model.absorbed_latent_attention_sizes import latent_of
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.decode_state import Lifetime, decode_states
from shardwright.model.ir.block import TEXT
from shardwright.serving.step_times.build_step_table import block_uses


def elements(name: str, lifetime: Lifetime, *, parts: int = 1) -> int:
    blocks = block_uses(load_model(name), draft_tokens=0)
    return sum(
        count * one.elements(parts)
        for block, count in blocks
        for one in decode_states(block)
        if one.lifetime is lifetime
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-70b", 80 * 8 * (128 + 128)),  # 327,680 bytes a token in 16 bits
        (
            "deepseek-v3",
            61 * (512 + 64),
        ),  # 70,272 bytes: DeepSeek-V3's 70 KB a token (arXiv 2505.09343, table 1)
        ("gpt-oss-120b", 36 * 8 * (64 + 64)),
        ("qwen3-235b-a22b", 94 * 4 * (128 + 128)),
    ],
)
def test_elements_of_a_token(name: str, expected: int) -> None:
    assert elements(name, Lifetime.TOKEN) == expected


def test_key_heads_fewer_than_parts_are_copied() -> None:
    whole, halves, sixteenths = (
        elements("llama-3.1-70b", Lifetime.TOKEN, parts=parts) for parts in (1, 2, 16)
    )
    assert halves * 2 == whole
    assert sixteenths * 8 == whole


def test_a_latent_is_on_every_device() -> None:
    assert elements("deepseek-v3", Lifetime.TOKEN, parts=8) == elements(
        "deepseek-v3", Lifetime.TOKEN
    )


def test_windows_are_said() -> None:
    windows = {
        one.window for block in load_model("gpt-oss-120b").blocks for one in decode_states(block)
    }
    assert windows == {0, 128}


def test_states_live_by_sequence() -> None:
    # Qwen3-Next: 36 of 48 layers have 32 value heads whose state is 128 x 128, and a convolution of
    # 4 taps over 2 x 2,048 + 4,096 channels.
    assert elements("qwen3-next-80b-a3b", Lifetime.SEQUENCE) == 36 * (
        32 * 128 * 128 + 3 * (2 * 2048 + 4096)
    )
    assert elements("qwen3-next-80b-a3b", Lifetime.TOKEN) == 12 * 2 * (256 + 256)


def test_the_absorbed_core_multiplies_as_often_as_it_reads() -> None:
    latents = [latent_of(block) for block in load_model("deepseek-v3").blocks if block.is_layer]
    assert latents
    for latent in latents:
        assert latent is not None
        core = latent.core()
        assert (core.heads, core.kv_heads, core.head_dim, core.value_dim) == (128, 1, 576, 512)


def test_other_attention_has_no_latent() -> None:
    assert all(latent_of(block) is None for block in load_model("llama-3-8b").blocks)


def test_only_text_lives() -> None:
    model = load_model("qwen3-vl-8b")
    assert {block.sequence for block in model.blocks} > {TEXT}
    assert all(not decode_states(block) for block in model.blocks if block.sequence != TEXT)
