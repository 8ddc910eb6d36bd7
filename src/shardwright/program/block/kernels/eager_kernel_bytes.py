"""Bytes that eager PyTorch's kernels move for each element of a norm, activation or loss.

Of a 2-byte tensor; counted operator by operator, nothing fitted. Each kernel reads its inputs and
writes its output once; a cast to fp32 is a kernel of its own.

Sources: RMSNorm in fp32 (InternEvo internlm/model/ops/norm.py; torchtitan v0.1.0 models/norms.py),
rotary embedding on complex numbers, silu(gate) * up and cross-entropy of logits.float() (torchtitan
v0.1.0 models/llama, components/loss.py); PyTorch's formulas of pow, mean, rsqrt and silu backward
(tools/autograd/derivatives.yaml), from memory.
"""

from __future__ import annotations

from typing import Final

WIDTH: Final = 2
"""Bytes of the element that the counts hold for."""
CAST: Final = 2 + 4
"""A cast between 16 and 32 bits."""

NORM_FORWARD: Final = CAST + (4 + 4) + 4 + (4 + 4) + CAST + (2 + 2)
"""RMSNorm: to fp32, square, mean, times the inverse root, back, times the gain: 36."""
NORM_BACKWARD: Final = (
    (2 + 2) + CAST + (4 + 4) + (8 + 4) + 4 + 4 + (4 + 4) + (4 + 4) + (8 + 4) + (8 + 4) + CAST
)
"""Gain; cast; both factors of the product, one summed a row; mean spread; square (a power, a
factor, a product); their sum; cast: 84."""
NORM_GAIN: Final = (4 + 2) + 2
"""Gradient of the gain: a product and its sum: 8."""
FP32_NORM_FORWARD: Final = CAST + (4 + 2)
"""A fused norm behind a cast of its input to fp32: 12."""
FP32_NORM_BACKWARD: Final = (2 + 4 + 4) + CAST
"""Gradient in fp32 from both tensors, and its cast: 16."""
FP32_NORM_GAIN: Final = 2 + 4
"""Both tensors again: 6."""
ROTARY: Final = CAST + (4 + 4) + CAST
"""To fp32, complex product, back; the same backward: 20."""
GATE_FORWARD: Final = (2 + 2) + (4 + 2)
"""silu, then the product with the other half, an element of the output: 10."""
GATE_BACKWARD: Final = (4 + 2) + (4 + 2) + (4 + 2)
"""Both factors of the product, then silu: 18."""
LOSS_FORWARD: Final = CAST + (4 + 4)
"""To fp32 and log-softmax: 14."""
LOSS_BACKWARD: Final = 4 + (8 + 4) + CAST
"""Zeros for the gradient of the picked entries, log-softmax, cast: 22."""
DIVERGENCE_FORWARD: Final = 2 * (CAST + (4 + 4) + (4 + 4)) + (4 + 4) + (8 + 4) + (8 + 4) + 4
"""Divergence from a teacher, a word of the vocabulary: both logits to fp32, over the temperature,
log-softmax; exp(target), target - input, their product and its sum: 80.

Source: ModelOpt, torch/distill/plugins/megatron.py at 3093b8a57f42 (`LogitsKLLoss.forward`), read;
PyTorch, aten/src/ATen/native/Loss.cpp (`kl_div`), from memory."""
DIVERGENCE_BACKWARD: Final = (4 + 4) + (4 + 4) + (8 + 4) + (4 + 4) + CAST
"""Of the model's own logits alone: the product with exp(target), its sign, log-softmax, the
temperature, cast: 42."""
