"""Reference blocks in plain PyTorch, driven by the fields of a Hugging Face configuration: what our
graphs are checked against.

They are written from the models' papers and know nothing of this package. A submodule's name is the
operator's name in our graph. `tp` builds one member's part of a tensor-parallel block: its heads
and its share of the feed-forward, the rest whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.torch_checks.kernels import Flash, Matmuls, Parts, Rms, Rotary, SwiGlu, Turn

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a block is computed.

    Args:
        tp: members that share its heads and feed-forward.
        flash: a fused attention kernel; else explicit products.
        fused: fused element-wise kernels; else PyTorch's own operators one by one.
        expanded: keys repeated to the query heads.
    """

    tp: int = 1
    flash: bool = False
    fused: bool = True
    expanded: bool = False

    def core(self, *, causal: bool = True) -> nn.Module:
        return Flash(expanded=self.expanded) if self.flash else Matmuls(causal=causal)


def heads_of(x: Tensor, width: int) -> Tensor:
    return x.unflatten(-1, (-1, width))


class Attention(nn.Module):
    """Grouped-query attention between the norm and the residual; operators ``qkv rotary core
    proj``."""

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        kv_heads: int,
        width: int,
        style: Style,
        bias: bool = False,
        rotary: bool = True,
    ) -> None:
        super().__init__()
        heads, kv_heads = heads // style.tp, max(kv_heads // style.tp, 1)
        self.width = width
        self.qkv = Parts(hidden, heads * width, kv_heads * width, kv_heads * width, bias=bias)
        self.rotary = Rotary() if rotary else None
        self.core = style.core()
        self.proj = nn.Linear(heads * width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.width) for part in self.qkv(x))
        if self.rotary is not None:
            q, k, v = self.rotary(q, k, v)
        result: Tensor = self.proj(self.core(q, k, v).flatten(2))
        return result


class Gelu(nn.Module):
    """Feed-forward with GELU: ``up act down``."""

    def __init__(self, *, hidden: int, ffn: int, style: Style, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, ffn // style.tp, bias=bias)
        self.act = nn.GELU(approximate="tanh")
        self.down = nn.Linear(ffn // style.tp, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.act(self.up(x)))
        return result


class Gated(nn.Module):
    """Feed-forward with SwiGLU: ``up act down``, gate and up as two GEMMs."""

    def __init__(self, *, hidden: int, ffn: int, style: Style) -> None:
        super().__init__()
        self.up = Parts(hidden, ffn // style.tp, ffn // style.tp)
        self.act = SwiGlu(fused=style.fused)
        self.down = nn.Linear(ffn // style.tp, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.act(*self.up(x)))
        return result


class Experts(nn.Module):
    """All experts' feed-forwards over tokens sorted by expert: ``up act down``, weights (experts,
    k, n), no token dropped."""

    def __init__(self, *, hidden: int, ffn: int, experts: int, style: Style) -> None:
        super().__init__()
        self.up = Grouped(experts, hidden, ffn, ffn)
        self.act = Weighted(fused=style.fused)
        self.down = Grouped(experts, ffn, hidden)

    def forward(self, x: Tensor, chances: Tensor, counts: list[int]) -> Tensor:
        gate, up = self.up(x, counts)
        return self.down(self.act(gate, up, chances), counts)[0]  # type: ignore[no-any-return]


class Grouped(nn.Module):
    def __init__(self, experts: int, reads: int, *writes: int) -> None:
        super().__init__()
        self.each = nn.ParameterList(
            torch.empty(experts, reads, n).normal_(std=0.02) for n in writes
        )

    def forward(self, x: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
        return tuple(GroupedGemm.apply(x, weight, counts) for weight in self.each)


class GroupedGemm(torch.autograd.Function):
    """y = x_e W_e for each run of tokens, as one operator: backward needs x and W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        return torch.cat([part @ weight[e] for e, part in enumerate(x.split(counts))])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        pairs = list(zip(x.split(ctx.counts), grads[0].split(ctx.counts), strict=True))
        dx = (
            torch.cat([g @ weight[e].T for e, (_, g) in enumerate(pairs)])
            if ctx.needs_input_grad[0]
            else None
        )
        dw = torch.stack([part.T @ g for part, g in pairs]) if ctx.needs_input_grad[1] else None
        return dx, dw, None


class WeightedSwiGlu(torch.autograd.Function):
    """silu(gate) x up x (the token's chance for this expert) as one kernel: backward needs the
    halves and the chances."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, chances: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, chances)
        return functional.silu(gate) * up * chances[:, None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, up, chances = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        scaled = grads[0] * chances[:, None]
        weight = (grads[0] * gate * sigmoid * up).sum(-1)
        return scaled * up * sigmoid * (1 + gate * (1 - sigmoid)), scaled * gate * sigmoid, weight


class Weighted(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, gate: Tensor, up: Tensor, chances: Tensor) -> Tensor:
        if self.fused:
            result: Tensor = WeightedSwiGlu.apply(gate, up, chances)
            return result
        return functional.silu(gate) * up * chances[:, None]


class Mixture(nn.Module):
    """Router, top-k, dropless experts and a shared expert: ``router route permute experts.*
    unpermute shared.* combine``.

    `balanced`: tokens go to experts in turn whatever their scores (shapes need no values then).
    """

    def __init__(
        self,
        *,
        hidden: int,
        ffn: int,
        experts: int,
        topk: int,
        style: Style,
        shared_ffn: int = 0,
        balanced: bool = False,
    ) -> None:
        super().__init__()
        self.num_experts, self.topk, self.balanced = experts, topk, balanced
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = Experts(hidden=hidden, ffn=ffn, experts=experts, style=style)
        self.shared = Gated(hidden=hidden, ffn=shared_ffn, style=style) if shared_ffn else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        scores = torch.softmax(self.router(flat), -1)
        chances, chosen = scores.topk(self.topk)
        if self.balanced:
            places = torch.arange(chosen.numel())
            source, counts = (
                places // self.topk,
                [chosen.numel() // self.num_experts] * self.num_experts,
            )
        else:
            order = chosen.flatten().argsort()
            source, counts = (
                order // self.topk,
                chosen.flatten().bincount(minlength=self.num_experts).tolist(),
            )
            chances = chances.flatten()[order]
        out = self.experts(flat[source], chances.flatten(), counts)
        # index_add would keep `out` for its shape alone.
        mixed = (
            torch.zeros_like(flat).scatter_add(0, source[:, None].expand_as(out), out).view_as(x)
        )
        return mixed if self.shared is None else mixed + self.shared(x)


class Residual(nn.Module):
    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch


class Layer(nn.Module):
    """x + attention(norm1 x), then x + feed_forward(norm2 x)."""

    def __init__(
        self, norms: tuple[nn.Module, nn.Module], attention: nn.Module, feed_forward: nn.Module
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = norms
        self.attention, self.feed_forward = attention, feed_forward
        self.residual1, self.residual2 = Residual(), Residual()

    def forward(self, x: Tensor) -> Tensor:
        stream = self.residual1(x, self.attention(self.norm1(x)))
        result: Tensor = self.residual2(stream, self.feed_forward(self.norm2(stream)))
        return result


def gpt_layer(config: Config, style: Style) -> Layer:
    hidden, heads = config["n_embd"], config["n_head"]
    return Layer(
        (nn.LayerNorm(hidden), nn.LayerNorm(hidden)),
        Attention(
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            width=hidden // heads,
            style=style,
            bias=True,
            rotary=False,
        ),
        Gelu(hidden=hidden, ffn=4 * hidden, style=style, bias=True),
    )


def _grouped_attention(config: Config, style: Style) -> Attention:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        width=hidden // heads,
        style=style,
    )


def llama_layer(config: Config, style: Style) -> Layer:
    hidden = config["hidden_size"]
    feed = Gated(hidden=hidden, ffn=config["intermediate_size"], style=style)
    return Layer((Rms(hidden), Rms(hidden)), _grouped_attention(config, style), feed)


def mixtral_layer(config: Config, style: Style, *, balanced: bool = False) -> Layer:
    hidden = config["hidden_size"]
    mixture = Mixture(
        hidden=hidden,
        ffn=config["intermediate_size"],
        experts=config["num_local_experts"],
        topk=config["num_experts_per_tok"],
        style=style,
        balanced=balanced,
    )
    return Layer((Rms(hidden), Rms(hidden)), _grouped_attention(config, style), mixture)


class LatentAttention(nn.Module):
    """DeepSeek-V2's attention, section 2.1, keys and values expanded: ``q_down q_norm q_up kv_down
    kv_norm kv_up rotary core proj``."""

    def __init__(self, config: Config, style: Style) -> None:
        super().__init__()
        hidden, heads = config["hidden_size"], config["num_attention_heads"] // style.tp
        self.nope, self.rope, self.value = (
            config["qk_nope_head_dim"],
            config["qk_rope_head_dim"],
            config["v_head_dim"],
        )
        self.kv_lora = config["kv_lora_rank"]
        self.q_down = nn.Linear(hidden, config["q_lora_rank"], bias=False)
        self.q_norm = Rms(config["q_lora_rank"])
        self.q_up = nn.Linear(config["q_lora_rank"], heads * (self.nope + self.rope), bias=False)
        self.kv_down = nn.Linear(hidden, self.kv_lora + self.rope, bias=False)
        self.kv_norm = Rms(self.kv_lora)
        self.kv_up = nn.Linear(self.kv_lora, heads * (self.nope + self.value), bias=False)
        self.core = style.core()
        self.proj = nn.Linear(heads * self.value, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        queries = heads_of(self.q_up(self.q_norm(self.q_down(x))), self.nope + self.rope)
        plain, turned = queries.split([self.nope, self.rope], -1)
        latent, shared = self.kv_down(x).split([self.kv_lora, self.rope], -1)
        keys, values = heads_of(self.kv_up(self.kv_norm(latent)), self.nope + self.value).split(
            [self.nope, self.value], -1
        )
        q = torch.cat([plain, Turn.apply(turned)], -1)
        one = Turn.apply(shared[:, :, None, :])
        k = torch.cat([keys, one.expand(-1, -1, keys.shape[2], -1)], -1)
        result: Tensor = self.proj(self.core(q, k, values).flatten(2))
        return result


def deepseek_layer(config: Config, style: Style) -> Layer:
    hidden, ffn = config["hidden_size"], config["moe_intermediate_size"]
    mixture = Mixture(
        hidden=hidden,
        ffn=ffn,
        experts=config["n_routed_experts"],
        topk=config["num_experts_per_tok"],
        style=style,
        shared_ffn=config["n_shared_experts"] * ffn,
    )
    return Layer((Rms(hidden), Rms(hidden)), LatentAttention(config, style), mixture)


class Scan(nn.Module):
    """Mamba-2's recurrence in chunks (Dao and Gu 2024, section 6): products inside chunks, states
    from chunk to chunk.

    C B^T is one product a group, what is built from it one a head.
    """

    def __init__(self, heads: int, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk
        self.a_log, self.d, self.dt_bias = (nn.Parameter(torch.zeros(heads)) for _ in range(3))

    def forward(self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor) -> Tensor:
        heads, times = x.shape[2], x.shape[2] // b.shape[2]
        step = functional.softplus(dt + self.dt_bias)
        decay = self._chunks(-step * self.a_log.exp()).cumsum(2).movedim(-1, 2)
        inputs = self._chunks(x * step[..., None]).transpose(2, 3)
        keys, queries = (self._chunks(y).transpose(2, 3) for y in (b, c))
        within = (decay[..., :, None] - decay[..., None, :]).tril().exp().tril()
        scores = (queries @ keys.transpose(-1, -2)).repeat_interleave(times, 2) * within
        wide = keys.repeat_interleave(times, 2)
        built = (wide * (decay[..., -1:] - decay).exp()[..., None]).transpose(-1, -2) @ inputs
        states, state = [], torch.zeros_like(built[:, 0])
        for chunk in range(built.shape[1]):
            states.append(state)
            state = state * decay[:, chunk, :, -1].exp()[..., None, None] + built[:, chunk]
        read = (queries.repeat_interleave(times, 2) * decay.exp()[..., None]) @ torch.stack(
            states, 1
        )
        out = (scores @ inputs + read).transpose(2, 3).flatten(1, 2)
        return out + x * self.d.view(heads, 1)

    def _chunks(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.chunk))


class Mamba(nn.Module):
    """x + mixer(norm x) with a Mamba-2 mixer:
    ``norm in_proj conv scan gate gate_norm out_proj``."""

    def __init__(self, config: Config, style: Style) -> None:
        super().__init__()
        hidden, self.head_dim, state = (
            config["hidden_size"],
            config["head_dim"],
            config["state_size"],
        )
        heads, groups = config["num_heads"] // style.tp, max(config["n_groups"] // style.tp, 1)
        inner = heads * self.head_dim
        self.sizes, self.state = [inner, inner + 2 * groups * state, heads], state
        self.inner, self.shared = inner, groups * state
        self.norm = Rms(hidden)
        self.in_proj = nn.Linear(hidden, sum(self.sizes), bias=False)
        taps, channels = config["conv_kernel"], self.sizes[1]
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)
        self.scan = Scan(heads, config["chunk_size"])
        self.gate = SwiGlu(fused=style.fused)
        self.gate_norm = Rms(inner)
        self.out_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, mixed, dt = self.in_proj(self.norm(x)).split(self.sizes, -1)
        mixed = functional.silu(self.conv(mixed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        inputs, b, c = mixed.split([self.inner, self.shared, self.shared], -1)
        out = self.scan(
            heads_of(inputs, self.head_dim), heads_of(b, self.state), heads_of(c, self.state), dt
        )
        result: Tensor = x + self.out_proj(self.gate_norm(self.gate(gate, out.flatten(2))))
        return result


class CrossAttention(nn.Module):
    """Queries from the decoder, keys and values from the encoder's output: ``q kv core proj``."""

    def __init__(self, *, hidden: int, heads: int, width: int, style: Style) -> None:
        super().__init__()
        self.width = width
        self.q = nn.Linear(hidden, heads // style.tp * width, bias=False)
        self.kv = Parts(hidden, heads // style.tp * width, heads // style.tp * width)
        self.core = style.core(causal=False)
        self.proj = nn.Linear(heads // style.tp * width, hidden, bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        k, v = (heads_of(part, self.width) for part in self.kv(memory))
        result: Tensor = self.proj(self.core(heads_of(self.q(x), self.width), k, v).flatten(2))
        return result


class CrossLayer(nn.Module):
    """A T5 decoder layer: self-attention, attention to the encoder's output, feed-forward."""

    def __init__(self, config: Config, style: Style) -> None:
        super().__init__()
        hidden, heads, width = config["d_model"], config["num_heads"], config["d_kv"]
        self.norm1, self.cross_norm, self.norm2 = Rms(hidden), Rms(hidden), Rms(hidden)
        self.attention = Attention(
            hidden=hidden, heads=heads, kv_heads=heads, width=width, style=style, rotary=False
        )
        self.cross = CrossAttention(hidden=hidden, heads=heads, width=width, style=style)
        self.feed_forward = Gated(hidden=hidden, ffn=config["d_ff"], style=style)
        self.residual1, self.cross_residual, self.residual2 = Residual(), Residual(), Residual()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        stream = self.residual1(x, self.attention(self.norm1(x)))
        stream = self.cross_residual(stream, self.cross(self.cross_norm(stream), memory))
        result: Tensor = self.residual2(stream, self.feed_forward(self.norm2(stream)))
        return result


class Embedding(nn.Module):
    def __init__(self, *, hidden: int, vocab: int) -> None:
        super().__init__()
        self.lookup = nn.Embedding(vocab, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.lookup(tokens)
        return result


class Head(nn.Module):
    """Final norm, logits and cross-entropy: ``norm logits loss``."""

    def __init__(self, *, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm = Rms(hidden)
        self.logits = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(
            self.logits(self.norm(x)).flatten(0, 1).float(), labels.flatten()
        )
