"""Timed training step of a small decoder in plain torch on one device, dense or with experts.

Eager kernels, no parallelism.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shardwright.calibrate.kernel_timing import TORCH_DTYPES
from shardwright.dtype import Dtype
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Median seconds of forward (with loss), backward and optimizer, and peak bytes.

    Peak bytes are 0 on a processor.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    peak_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.forward_s + self.backward_s + self.optimizer_s


class _Attention(nn.Module):  # type: ignore[misc]
    """Causal attention with grouped key heads and rotary embedding."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, self.heads, self.groups = (
            config["hidden_size"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
        )
        self.head_dim = hidden // self.heads
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * self.head_dim, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Causal grouped-query attention with rotary positions: (batch, length, hidden)."""
        batch, length, hidden = x.shape
        heads = (
            self.qkv(x)
            .view(batch, length, self.heads + 2 * self.groups, self.head_dim)
            .transpose(1, 2)
        )
        q, k, v = heads.split([self.heads, self.groups, self.groups], dim=1)
        mixed = functional.scaled_dot_product_attention(
            _apply_rotary(q, rotary), _apply_rotary(k, rotary), v, is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))


def _apply_rotary(x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply the rotary embedding (cosines, sines) to queries or keys."""
    left, right = x.chunk(2, dim=-1)
    return x * rotary[0] + torch.cat((-right, left), dim=-1) * rotary[1]


class _Mlp(nn.Module):  # type: ignore[misc]
    """Gated feed-forward (SwiGLU)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gated feed-forward layer: down(silu(gate x) * up x)."""
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class _Experts(nn.Module):  # type: ignore[misc]
    """Mixture of experts with an equal number of tokens for each expert."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.chosen = config["num_experts_per_tok"]
        self.router = nn.Linear(config["hidden_size"], config["num_local_experts"], bias=False)
        self.experts = nn.ModuleList(
            _Mlp(config["hidden_size"], config["intermediate_size"])
            for _ in range(config["num_local_experts"])
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mixture of experts with even routing, and outputs weighted by the router."""
        tokens = x.reshape(-1, x.shape[-1])
        weights = self.router(tokens).float().softmax(dim=-1).topk(self.chosen, dim=-1).values
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
        # Every expert gets the same number of tokens, as the prediction's balanced routing has it:
        # by rank, not by the router's choice.
        copies = torch.arange(tokens.shape[0] * self.chosen, device=x.device).view(
            len(self.experts), -1
        )
        out = torch.zeros_like(tokens)
        flat = weights.reshape(-1, 1)
        for expert, rows in zip(self.experts, copies, strict=True):
            token = rows % tokens.shape[0]
            out = out.index_add(0, token, expert(tokens[token]) * flat[rows])
        return out.view_as(x)


class _Layer(nn.Module):  # type: ignore[misc]
    """Decoder layer: attention and feed-forward, each after a norm."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.before, self.after = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = _Attention(config)
        self.mlp = (
            _Experts(config)
            if "num_local_experts" in config
            else _Mlp(hidden, config["intermediate_size"])
        )

    def forward(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Decoder layer: attention, then feed-forward, each after a norm and with a residual."""
        x = x + self.attention(self.before(x), rotary)
        return x + self.mlp(self.after(x))


class _Decoder(nn.Module):  # type: ignore[misc]
    """Decoder: embedding, layers, norm and head."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.embed = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"])
        self.head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(
        self, tokens: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Logits of token ids, through embedding, layers, norm and head."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, rotary)
        return self.head(self.norm(x))


def measure_step(
    config: Mapping[str, Any],
    *,
    device: str,
    dtype: Dtype,
    batch: int,
    length: int,
    repetitions: int,
    warm_up: int,
) -> MeasuredStep:
    """Median seconds of a small decoder's forward, backward, AdamW; peak bytes of a GPU (CPU: 0).

    Args:
        dtype: of parameters and activations; a 16-bit one has fp32 master copies in the optimizer
            (AdamW, fused).
        batch, length: sequences and tokens of each.
        warm_up: steps before the `repetitions` whose medians count.

    Routing is forced to be even. No recompute, no compilation, no gradient clipping.
    """
    torch.manual_seed(0)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    else:
        held = 0
    model = _Decoder(config).to(device=device, dtype=TORCH_DTYPES[dtype])
    update = _optimizer_step(model, dtype)
    tokens = torch.randint(config["vocab_size"], (batch, length + 1), device=device)
    rotary = _rotary_tables(config, length, device, TORCH_DTYPES[dtype])

    def forward() -> torch.Tensor:
        """Mean cross-entropy of the decoder's next-token predictions."""
        logits = model(tokens[:, :-1], rotary)
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    times: list[tuple[float, float, float]] = []
    for _ in range(warm_up + repetitions):
        start = _synchronised_time(device)
        loss = forward()
        after_forward = _synchronised_time(device)
        loss.backward()
        after_backward = _synchronised_time(device)
        del loss
        update()
        times.append(
            (
                after_forward - start,
                after_backward - after_forward,
                _synchronised_time(device) - after_backward,
            )
        )
    kept = times[warm_up:]
    return MeasuredStep(
        forward_s=median(t[0] for t in kept),
        backward_s=median(t[1] for t in kept),
        optimizer_s=median(t[2] for t in kept),
        peak_bytes=int(torch.cuda.max_memory_allocated()) - held if device == "cuda" else 0,
    )


def _synchronised_time(device: str) -> float:
    """Clock time in seconds after all work of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _optimizer_step(model: nn.Module, dtype: Dtype) -> Callable[[], None]:
    """Make a function: one fused AdamW step, on fp32 masters if 16-bit, that frees the gradients.

    The step updates fp32 master copies where parameters are 16-bit.
    """
    parameters = list(model.parameters())
    if dtype.bits == 32:
        plain = torch.optim.AdamW(parameters, fused=True)

        def step() -> None:
            """Apply AdamW to the parameters, and free their gradients."""
            plain.step()
            plain.zero_grad(set_to_none=True)

        return step
    masters = [p.detach().float().requires_grad_() for p in parameters]
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step_masters() -> None:
        """Apply AdamW to fp32 master copies, and round them into the parameters."""
        with torch.no_grad():
            for parameter, master in zip(parameters, masters, strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float()
                parameter.grad = None
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            for parameter, master in zip(parameters, masters, strict=True):
                parameter.copy_(master)

    return step_masters


def _rotary_tables(
    config: Mapping[str, Any], length: int, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the rotary embedding, each (length, head dim)."""
    width = config["hidden_size"] // config["num_attention_heads"]
    frequency = 1e4 ** (-torch.arange(0, width, 2, device=device).float() / width)
    angle = torch.outer(torch.arange(length, device=device).float(), frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)
