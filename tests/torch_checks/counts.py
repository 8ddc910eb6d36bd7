"""What PyTorch itself counts of a block: matmul FLOPs, and tensors that autograd keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def fake_half() -> Iterator[None]:
    """Fake tensors, bf16 where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.set_default_dtype(before)


MATMULS = ("mm", "addmm", "bmm", "baddbmm")


def counted(run: Callable[[], object]) -> dict[str, int]:
    """FLOPs of every operator that `run` calls, by the operator's name; PyTorch counts products,
    convolutions and fused attention."""
    with FlopCounterMode(display=False) as counter:
        run()
    return {
        str(op).removeprefix("aten."): int(n)
        for op, n in counter.get_flop_counts().get("Global", {}).items()
    }


def matmul_flops(run: Callable[[], object]) -> int:
    """FLOPs of matrix products that `run` calls."""
    return sum(n for op, n in counted(run).items() if op in MATMULS)


def by_operator(block: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, int]:
    """FLOPs of matrix products of the block's forward by operator; zeros are left out."""
    with FlopCounterMode(display=False) as counter:
        block(*inputs)
    counts = counter.get_flop_counts()
    result: dict[str, int] = {}
    for path, _ in _operators(block):
        ops = counts.get(f"{type(block).__name__}.{path}", {})
        flops = sum(int(n) for op, n in ops.items() if str(op).removeprefix("aten.") in MATMULS)
        if flops:
            result[operator_name(path)] = flops
    return result


def forward_and_backward(block: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[int, int, int]:
    """Matmul FLOPs of the forward, of the gradients of the inputs, and of those of the weights."""
    out: list[Tensor] = []
    forward = matmul_flops(lambda: out.append(block(*inputs)))
    sources = [x for x in inputs if x.requires_grad]
    both = matmul_flops(lambda: out[0].sum().backward())
    for parameter in block.parameters():
        parameter.requires_grad_(False)
    try:
        only = matmul_flops(lambda: block(*inputs).sum().backward()) - forward if sources else 0
    finally:
        for parameter in block.parameters():
            parameter.requires_grad_(True)
    return forward, only, both - only


def operator_name(path: str) -> str:
    """The operator's name in our graph of the submodule at `path`."""
    return path.removeprefix("attention.").removeprefix("feed_forward.").replace("cross_", "cross.")


def _operators(block: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Submodules that are operators: neither groups of them nor the parts of one."""
    groups = ("attention", "feed_forward", "experts", "shared", "cross")
    for path, module in block.named_modules():
        if path and ".each" not in path and path.rpartition(".")[2] not in groups:
            yield path, module


def _local(x: Tensor) -> Tensor:
    local: Tensor = getattr(x, "_local_tensor", x)
    return local


class Kept:
    """Bytes that autograd keeps between a block's forward and its backward, by the tensor's name:
    each storage once, no parameter.

    A tensor is named after the innermost named module that returned it (several: ``name``,
    ``name.1``, ...), the last one that did; the block's own inputs are ``input``, ``memory``; what
    no module returned is ``module:dtype``.
    """

    def __init__(self, block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._names: dict[int, str] = {}
        self._kept: dict[int, tuple[str, int]] = {}
        self._alive: list[Tensor] = []
        self._running = [""]
        parameters = {self._key(p) for p in block.parameters()}
        for name, x in zip(("input", "memory"), inputs, strict=False):
            self._named(x, name)
        hooks = []
        for name, module in _operators(block):
            short = operator_name(name)
            hooks.append(module.register_forward_pre_hook(self._enter(short)))
            hooks.append(module.register_forward_hook(self._leave(short)))

        def pack(x: Tensor) -> Tensor:
            if self._key(x) not in parameters:
                self._alive.append(x)
                label = f"{self._running[-1]}:{str(x.dtype).removeprefix('torch.')}"
                self._kept.setdefault(self._key(x), (label, _local(x).untyped_storage().nbytes()))
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            self.out = block(*inputs)
        for hook in hooks:
            hook.remove()

    def by_name(self) -> dict[str, int]:
        """Bytes of every kept tensor."""
        result: dict[str, int] = {}
        for key, (label, size) in self._kept.items():
            name = self._names.get(key, label)
            result[name] = result.get(name, 0) + size
        return result

    @staticmethod
    def _key(x: Tensor) -> int:
        return int(_local(x).untyped_storage()._cdata)

    def _named(self, x: Tensor, name: str) -> None:
        self._alive.append(x)
        self._names[self._key(x)] = name

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._running.append(name)

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, out: Tensor | tuple[Tensor, ...]) -> None:
            self._running.pop()
            for place, x in enumerate(out if isinstance(out, tuple) else (out,)):
                self._named(x, f"{name}.{place}" if place else name)

        return hook
