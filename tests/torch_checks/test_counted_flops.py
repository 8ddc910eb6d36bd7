"""Matmul FLOPs of every kind of block: PyTorch's counter against the Program's tasks, as integers,
forward and both backward halves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (the extra `run`)")

from shardwright.program.block.block_program import Phase
from shardwright.runtime.framework_description import Runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.torch_checks import blocks, ours
from tests.torch_checks.blocks import Style
from tests.torch_checks.counts import by_operator, counted, fake_half, forward_and_backward

BATCH, TOKENS, HIDDEN = ours.BATCH, ours.TOKENS, 64


def stream(tokens: int = TOKENS) -> Any:
    return torch.randn(BATCH, tokens, HIDDEN, requires_grad=True)


def labels() -> Any:
    return torch.zeros(BATCH, TOKENS, dtype=torch.long)


Case = tuple[Mapping[str, Any], str, Callable[[Style], Any], Callable[[], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "gpt": (ours.GPT, "layer", lambda s: blocks.gpt_layer(ours.GPT, s), lambda: (stream(),)),
    "llama": (
        ours.LLAMA,
        "layer",
        lambda s: blocks.llama_layer(ours.LLAMA, s),
        lambda: (stream(),),
    ),
    "mixtral": (
        ours.MIXTRAL,
        "moe",
        lambda s: blocks.mixtral_layer(ours.MIXTRAL, s),
        lambda: (stream(),),
    ),
    "deepseek-v2": (
        ours.DEEPSEEK,
        "moe",
        lambda s: blocks.deepseek_layer(ours.DEEPSEEK, s),
        lambda: (stream(),),
    ),
    "mamba-2": (ours.MAMBA, "mamba", lambda s: blocks.Mamba(ours.MAMBA, s), lambda: (stream(),)),
    "t5-decoder": (
        ours.T5,
        "decoder",
        lambda s: blocks.CrossLayer(ours.T5, s),
        lambda: (stream(), stream(ours.ENCODER_TOKENS)),
    ),
    "embedding": (
        ours.LLAMA,
        "embed",
        lambda _: blocks.Embedding(hidden=HIDDEN, vocab=256),
        lambda: (labels(),),
    ),
    "head": (
        ours.LLAMA,
        "head",
        lambda _: blocks.Head(hidden=HIDDEN, vocab=256),
        lambda: (stream(), labels()),
    ),
}
# Experts are cut by tp only on a mesh of their own; embedding and head are cut by vocabulary, which
# the plain modules are not.
CUT = ("gpt", "llama", "mamba-2", "t5-decoder")


def program_flops(name: str, *, tp: int, runtime: Runtime) -> dict[Phase, dict[str, int]]:
    config, block, _, _ = CASES[name]
    program, degrees = ours.lowered(
        ours.problem_for(config, runtime=runtime), block, Grid(microbatch=BATCH, tp=tp)
    )
    return {phase: ours.matmul_flops(program, degrees, phase) for phase in Phase}


@pytest.mark.parametrize("runtime", [ours.UNFUSED, ours.FUSED], ids=["unfused", "fused"])
@pytest.mark.parametrize(
    ("name", "tp"), [*((name, 1) for name in CASES), *((name, 2) for name in CUT)]
)
def test_forward_input_and_weight_gradients(name: str, tp: int, runtime: Runtime) -> None:
    torch.manual_seed(0)
    _, _, make, inputs = CASES[name]
    forward, input_gradient, weight_gradient = forward_and_backward(make(Style(tp=tp)), inputs())
    mine = program_flops(name, tp=tp, runtime=runtime)
    assert forward == sum(mine[Phase.F].values())
    assert input_gradient == sum(mine[Phase.I].values())
    assert weight_gradient == sum(mine[Phase.W].values())
    assert name == "embedding" or forward > 0


@pytest.mark.parametrize("name", [name for name in CASES if name != "embedding"])
def test_each_operator(name: str) -> None:
    torch.manual_seed(0)
    _, _, make, inputs = CASES[name]
    assert (
        by_operator(make(Style()), inputs())
        == program_flops(name, tp=1, runtime=ours.UNFUSED)[Phase.F]
    )


def test_what_is_left_out_is_the_convolution() -> None:
    """Mamba-2's depthwise taps: 2 x channels x taps a position (padded by taps - 1) are priced as
    memory traffic, not as FLOPs."""
    torch.manual_seed(0)
    _, _, make, inputs = CASES["mamba-2"]
    block = make(Style())
    counts = counted(lambda: block(*inputs()))
    channels, taps = 8 * 16 + 2 * 2 * 24, 4
    assert counts["convolution"] == 2 * BATCH * (TOKENS + taps - 1) * channels * taps
    assert set(counts) == {"mm", "bmm", "convolution"}


def test_fused_attention_counts_its_backward_recompute() -> None:
    """PyTorch's formula for a fused core: two products forward, five backward (scores once more);
    ours are the four that remain."""
    with fake_half():
        block = blocks.gpt_layer(ours.GPT, Style(flash=True))
        x = torch.empty(BATCH, TOKENS, HIDDEN, requires_grad=True)
        out: list[Any] = []
        forward = counted(lambda: out.append(block(x)))
        backward = counted(lambda: out[0].sum().backward())
    mine = program_flops("gpt", tp=1, runtime=ours.FUSED)
    core = mine[Phase.F]["core"]
    assert forward["_scaled_dot_product_flash_attention"] == core
    assert backward["_scaled_dot_product_flash_attention_backward"] == core * 5 // 2
    assert mine[Phase.I]["core"] == 2 * core
