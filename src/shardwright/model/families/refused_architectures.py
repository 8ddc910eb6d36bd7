"""Known architectures that are refused, with the name of the unsupported feature."""

from __future__ import annotations

from typing import NoReturn

from shardwright.model.ir.config_json_field_access import Fields


def refuse_deepseek_v4(fields: Fields) -> NoReturn:
    """Refuse DeepSeek-V4 by ModelError: compressed keys, residual streams by hyper-connections."""
    if fields.present("hc_mult"):
        streams = fields.integer("hc_mult", maximum=1024)
        fields.unsupported(
            f"hc_mult = {streams} (residual streams mixed by hyper-connections) with"
            " compress_ratios (compressed keys)"
        )
    fields.unsupported("compress_ratios (attention over compressed keys)")


def refuse_kimi_k3(fields: Fields) -> NoReturn:
    """Refuse Kimi-K3 by ModelError: attention over residuals, key-wise delta nets, and more."""
    text = fields.section("text_config")
    for feature in ("attn_res_block_size", "linear_attn_config", "routed_expert_hidden_size"):
        if text.present(feature):
            text.unsupported(f"text_config.{feature} (Kimi-K3's layers)")
    fields.unsupported("the architecture of Kimi-K3")
