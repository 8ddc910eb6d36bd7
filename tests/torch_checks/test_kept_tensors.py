"""Tensors that autograd keeps of a block, one by one, against the Program's saved tensors: equal,
or differing by what is listed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (the extra `run`)")

from shardwright.runtime.framework_description import Runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.torch_checks import blocks, ours
from tests.torch_checks.blocks import Style
from tests.torch_checks.counts import Kept, fake_half

BATCH, POSITIONS, HIDDEN = ours.BATCH, ours.TOKENS, 64
TOKENS, MEMORY = BATCH * POSITIONS, BATCH * ours.ENCODER_TOKENS
FLASH, EAGER, PLAIN = Style(flash=True), Style(flash=True, fused=False, expanded=True), Style()

STATE = {"core:uint64": 24}
"""Seed and offset of the dropout generator, which the flash operator keeps whether or not there is
dropout."""
INVERSES = {"norm1:float32": 4 * TOKENS, "norm2:float32": 4 * TOKENS}
"""1 / rms of each token: left out of the model (4 bytes beside a token's 2 x hidden)."""
MOMENTS = {"norm1:bfloat16": 4 * TOKENS, "norm2:bfloat16": 4 * TOKENS}
"""LayerNorm's mean and 1 / deviation: the CPU's in bf16, a GPU's in fp32; left out of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A block in PyTorch and in our graph.

    Args:
        names: other names of tensors, on both sides: a copy that a kernel made of a tensor stands
            for it; several may be one.
        extra: bytes that PyTorch keeps and the model leaves out, by the names that `names` gives.
    """

    config: Mapping[str, Any]
    block: str
    make: Callable[[Style], Any]
    style: Style
    runtime: Runtime
    names: Mapping[str, str]
    extra: Mapping[str, int]
    memory: bool = False


LSE = {"core:float32": "core.lse"}
# Explicit products keep contiguous copies of what attention reads (and the projection of what it
# made), with the probabilities.
COPIES = dict.fromkeys(("qkv", "qkv.1", "qkv.2", "core.softmax", "core:bfloat16"), "core reads") | {
    "proj:bfloat16": "core"
}
CROSS = dict.fromkeys(
    ("cross.q", "cross.kv", "cross.kv.1", "cross.core.softmax", "cross.core:bfloat16"),
    "cross reads",
)
ROUTED = {"experts.up:bfloat16": "permute", ":bfloat16": "router", "experts.act:bfloat16": "route"}
LLAMA = {
    "config": ours.LLAMA,
    "block": "layer",
    "make": lambda s: blocks.llama_layer(ours.LLAMA, s),
}
CASES = {
    "gpt": Case(
        config=ours.GPT,
        block="layer",
        make=lambda s: blocks.gpt_layer(ours.GPT, s),
        style=FLASH,
        runtime=ours.FUSED,
        names=LSE,
        extra=STATE | MOMENTS,
    ),
    "gpt, explicit attention": Case(
        config=ours.GPT,
        block="layer",
        make=lambda s: blocks.gpt_layer(ours.GPT, s),
        style=PLAIN,
        runtime=ours.UNFUSED,
        names=COPIES,
        extra=MOMENTS,
    ),
    "llama": Case(**LLAMA, style=FLASH, runtime=ours.FUSED, names=LSE, extra=STATE | INVERSES),
    "llama, operator by operator": Case(
        **LLAMA,
        style=EAGER,
        runtime=ours.EAGER,
        names=LSE
        | {
            "act:bfloat16": "act.gate",
            "core:bfloat16": "keys",
            "rotary.1": "keys",
            "rotary.2": "keys",
        },
        # Keys and values repeated from 4 to 8 heads of 8 before the kernel, as torchtitan does it:
        # not in the model.
        extra=STATE | INVERSES | {"keys": 2 * TOKENS * (8 - 4) * 8 * 2},
    ),
    "mixtral": Case(
        config=ours.MIXTRAL,
        block="moe",
        make=lambda s: blocks.mixtral_layer(ours.MIXTRAL, s, balanced=True),
        style=FLASH,
        runtime=ours.FUSED,
        names=LSE | ROUTED,
        # int64 places of 2 copies a token, for the gather and for the sum, and the chosen experts.
        extra=STATE | INVERSES | {":int64": 2 * TOKENS * 2 * 8},
    ),
    "t5-decoder": Case(
        config=ours.T5,
        block="decoder",
        make=lambda s: blocks.CrossLayer(ours.T5, s),
        style=PLAIN,
        runtime=ours.UNFUSED,
        names=COPIES | CROSS | {"cross.proj:bfloat16": "cross.core"},
        # The encoder's output is one tensor for all layers.
        extra=INVERSES | {"cross.norm:float32": 4 * TOKENS, "memory": 2 * MEMORY * HIDDEN},
        memory=True,
    ),
}


def renamed(tensors: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    result: dict[str, int] = {}
    for name, size in tensors.items():
        result[names.get(name, name)] = result.get(names.get(name, name), 0) + size
    return result


def kept_by_torch(
    make: Callable[[Style], Any], style: Style, *, memory: bool = False
) -> dict[str, int]:
    with fake_half():
        block = make(style)
        lengths = (POSITIONS, ours.ENCODER_TOKENS) if memory else (POSITIONS,)
        inputs = tuple(torch.empty(BATCH, n, HIDDEN, requires_grad=True) for n in lengths)
        return Kept(block, inputs).by_name()


def kept_by_ours(config: Mapping[str, Any], block: str, runtime: Runtime) -> dict[str, int]:
    return ours.kept(
        *ours.lowered(ours.problem_for(config, runtime=runtime), block, Grid(microbatch=BATCH))
    )


@pytest.mark.parametrize("name", CASES)
def test_each_tensor(name: str) -> None:
    case = CASES[name]
    mine = renamed(kept_by_ours(case.config, case.block, case.runtime), case.names)
    for tensor, size in case.extra.items():
        mine[tensor] = mine.get(tensor, 0) + size
    assert renamed(kept_by_torch(case.make, case.style, memory=case.memory), case.names) == mine


def test_mamba_around_its_scan() -> None:
    """A scan in plain operators keeps all its intermediates and the convolution, a fused one the
    projection's output and makes the convolution again from it: everything else is equal."""
    got = kept_by_torch(lambda s: blocks.Mamba(ours.MAMBA, s), FLASH)
    mine = kept_by_ours(ours.MAMBA, "mamba", ours.FUSED)
    taps, channels = 4, 8 * 16 + 2 * 2 * 24
    assert got.pop("scan:bfloat16") > 0
    # The convolution is padded on both sides and cut off; the activation behind it keeps the whole.
    assert got.pop("conv") == 2 * BATCH * (POSITIONS + taps - 1) * channels
    assert not [name for name in mine if name.startswith("conv")]
    assert got.pop("in_proj") == sum(mine.pop(n) for n in list(mine) if n.startswith("in_proj"))
    assert got.pop("norm:float32") == got.pop("gate_norm:float32") == 4 * TOKENS
    assert got == mine


def test_head_keeps_fp32_log_probabilities() -> None:
    """4 bytes a logit of what the runtime's `logits_bytes` counts at the peak, and a scalar: the
    sum of the labels' weights."""
    with fake_half():
        head = blocks.Head(hidden=HIDDEN, vocab=256)
        x = torch.empty(BATCH, POSITIONS, HIDDEN, requires_grad=True)
        got = Kept(head, (x, torch.zeros(BATCH, POSITIONS, dtype=torch.long))).by_name()
    assert got == {
        **kept_by_ours(ours.LLAMA, "head", ours.FUSED),
        "norm:float32": 4 * TOKENS,
        ":float32": 4 * TOKENS * 256 + 4,
        "memory": 8 * TOKENS,
    }
