"""Architectures that are known and refused: the feature that this package has no operator for is
named, and nothing is guessed.
"""

from __future__ import annotations

from typing import NoReturn

from shardwright.model.ir.config_fields import Fields


def refuse_deepseek_v4(fields: Fields) -> NoReturn:
    """DeepSeek-V4: attention over compressed keys beside a window, and several residual streams
    mixed by hyper-connections.
    """
    if fields.present("hc_mult"):
        streams = fields.integer("hc_mult", maximum=1024)
        fields.unsupported(
            f"hc_mult = {streams} (residual streams mixed by hyper-connections) with"
            " compress_ratios (compressed keys)"
        )
    fields.unsupported("compress_ratios (attention over compressed keys)")


def refuse_kimi_k3(fields: Fields) -> NoReturn:
    """Kimi-K3: residuals chosen by attention over earlier blocks, key-wise gated delta nets,
    experts on a latent stream.
    """
    text = fields.section("text_config")
    for feature in ("attn_res_block_size", "linear_attn_config", "routed_expert_hidden_size"):
        if text.present(feature):
            text.unsupported(f"text_config.{feature} (Kimi-K3's layers)")
    fields.unsupported("the architecture of Kimi-K3")
