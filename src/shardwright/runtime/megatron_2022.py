"""Megatron-LM as in Korthikanti et al. 2022 (arXiv 2205.05198): sequence parallelism and selective recompute, attention still unfused."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import megatron_2021
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import TpOverlap

_TREE: Final = "https://github.com/NVIDIA/Megatron-LM/blob/v3.0/megatron"

RUNTIME: Final = derive(
    megatron_2021.RUNTIME,
    name="megatron-2022",
    version="3.0",
    released="2022-05",
    zero_stages=(0, 1),
    zero_with_pipeline=1,
    sequence_parallel=True,
    tp_input_regather=True,
    fused_weight_gradient=True,
    adds_gradients=False,
    tp_overlap=TpOverlap.DGRAD,
    facts=(
        *cite(
            f"{_TREE}/optimizer/distrib_optimizer.py", "zero_stages", "zero_with_pipeline", note="use-distributed-optimizer, off by default"
        ),
        *cite(f"{_TREE}/model/transformer.py", "selective_recompute", note="the attention core: scores, softmax, dropout and values"),
        *cite(
            f"{_TREE}/mpu/layers.py",
            "sequence_parallel",
            "tp_input_regather",
            "fused_weight_gradient",
            "adds_gradients",
            note="paper section 4.2.2: inputs are kept sharded and gathered again for the weight gradient; gradient-accumulation-fusion",
        ),
        *cite(
            "https://github.com/NVIDIA/Megatron-LM/blob/02bb1f5c86fc8c36d4a96a2b7ebcf63d53219369/megatron/mpu/layers.py",
            "tp_overlap",
            checked=True,
            note="backward gathers the kept input beside the input gradient's GEMM and reduces the input gradient beside the weight "
            "gradient's",
        ),
    ),
    aliases=("megatron-lm-2022", "megatron-korthikanti"),
)
