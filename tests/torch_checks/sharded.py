"""A whole decoder trained by PyTorch on one rank of a fake cluster: peak memory and its parts,
without hardware.

The model is built on the meta device, cut by `parallelize_module` and `fully_shard` over a fake
process group, given fake storage, and run for two steps under PyTorch's own memory tracker; the
second step's peak is read.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from tests.torch_checks.blocks import Config, Style, llama_layer, mixtral_layer
from tests.torch_checks.kernels import Rms


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the model is cut. `shard`: members of the FSDP group; recompute: none, selective (every
    second product kept) or full."""

    shard: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    microbatch: int = 1
    tokens: int = 64


class Decoder(nn.Module):
    """Embedding, Llama's or Mixtral's layers, norm and logits."""

    def __init__(self, config: Config, style: Style) -> None:
        super().__init__()
        hidden, vocab = config["hidden_size"], config["vocab_size"]
        self.embed = nn.Embedding(vocab, hidden)
        sparse = "num_local_experts" in config
        self.layers = nn.ModuleList(
            mixtral_layer(config, style, balanced=True) if sparse else llama_layer(config, style)
            for _ in range(config["num_hidden_layers"])
        )
        self.norm = Rms(hidden)
        self.logits = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.logits(self.norm(x))
        return result


@contextmanager
def fake_cluster(ranks: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _cut(model: Decoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    stream = Shard(1) if sequence_parallel else Replicate()
    inner = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
    plan: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "logits": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1)),
    }
    layer: dict[str, Any] = {"attention": inner, "feed_forward": inner}
    layer |= {f"attention.qkv.each.{i}": ColwiseParallel() for i in range(3)}
    layer |= {f"feed_forward.up.each.{i}": ColwiseParallel() for i in range(2)}
    layer |= {
        name: RowwiseParallel(output_layouts=stream)
        for name in ("attention.proj", "feed_forward.down")
    }
    if sequence_parallel:
        plan["norm"] = SequenceParallel()
        layer |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    parallelize_module(model, mesh, plan)
    for block in model.layers:
        parallelize_module(block, mesh, layer)


_KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


def _contexts() -> Any:
    """Every second matrix product is kept, counted from the first; attention and what a
    reduce_scatter made always."""
    seen = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator not in _KEPT:
            return CheckpointPolicy.PREFER_RECOMPUTE
        if operator is torch.ops.aten.mm.default:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE

    return create_selective_checkpoint_contexts(policy)


def _checkpointed(layer: nn.Module, recompute: str) -> nn.Module:
    if recompute == "none":
        return layer
    extra = {"context_fn": _contexts} if recompute == "selective" else {}
    return checkpoint_wrapper(layer, preserve_rng_state=False, **extra)


def _cut_and_sharded(model: Decoder, setting: Setting, mesh: DeviceMesh) -> Decoder:
    """The rank's part of the model, fp32 with bf16 compute: tensor parallel, then checkpointed,
    then sharded layer by layer."""
    if setting.tp > 1:
        _cut(model, mesh["tp"], sequence_parallel=setting.sequence_parallel)
    for i, layer in enumerate(model.layers):
        model.layers[i] = _checkpointed(layer, setting.recompute)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in model.layers:
        fully_shard(module, mesh=mesh["shard"], mp_policy=policy)
    # As in torchtitan, whose root holds embedding, norm and head and stays gathered from forward to
    # backward.
    for module in (model.embed, [model.norm, model.logits]):
        fully_shard(module, mesh=mesh["shard"], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh["shard"], mp_policy=policy)
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes of one rank: the tracker's peak, what of each kind lives at it, and the states as their
    tensors say."""

    peak: int
    parts: Mapping[str, int]
    parameters: int
    gradients: int
    optimizer: int
    kept: int


def _bytes(tensors: list[Tensor]) -> int:
    return sum(
        t.numel() * t.element_size() for t in (getattr(x, "_local_tensor", x) for x in tensors)
    )


def measured(config: Config, setting: Setting, style: Style) -> Measured:
    """Two steps on rank 0 of shard x tp ranks; the second's peak."""
    with fake_cluster(setting.shard * setting.tp):
        # A mesh reads its ranks' numbers: real tensors.
        mesh = init_device_mesh("cpu", (setting.shard, setting.tp), mesh_dim_names=("shard", "tp"))
        with torch.device("meta"):
            model = _cut_and_sharded(Decoder(config, style), setting, mesh)
        return _two_steps(model, setting)


def _two_steps(model: Decoder, setting: Setting) -> Measured:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
        tracker: MemTracker = FSDPMemTracker(model, optimizer)
        tokens = torch.zeros(setting.microbatch, setting.tokens, dtype=torch.long)
        gradients = kept = 0
        for _ in range(2):
            # Entering forgets the first step's peak: without optimizer states, but with the
            # whole-shaped tensors of DTensor's own propagation of shapes, which the second step
            # takes from its cache.
            with tracker:
                before = _total(tracker)
                # Of each member's part of the vocabulary: a vocabulary-parallel loss has the same
                # tensors, beside three numbers a token.
                loss = functional.cross_entropy(
                    model(tokens).flatten(0, 1).float(), tokens.flatten()
                )
                kept = _total(tracker) - before
                loss.backward()
                optimizer.step()
                gradients = _bytes([p.grad for p in model.parameters() if p.grad is not None])
                optimizer.zero_grad()
                del loss
        snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
        states = [
            t
            for state in optimizer.state.values()
            for t in state.values()
            if isinstance(t, Tensor) and t.numel() > 1
        ]
        result = Measured(
            peak=int(snapshot["Total"]),
            parts={str(getattr(k, "value", k)): int(v) for k, v in snapshot.items()},
            parameters=_bytes(list(model.parameters())),
            gradients=gradients,
            optimizer=_bytes(states),
            kept=kept,
        )
    gc.collect()
    return result


def _total(tracker: MemTracker) -> int:
    return int(tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"])
