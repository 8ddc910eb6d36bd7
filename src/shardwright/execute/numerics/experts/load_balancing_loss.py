"""Load-balancing loss of a mixture of experts: router counts, value and gradient.

    loss = experts x sum over experts e of f_e p_e
    f_e  = tokens of all routers that have e among their topk / rows
    p_e  = sum of softmax(logits)_e / rows

Rows are tokens times routers: the means are over all layers of a microbatch together, so a router's
gradient needs the counts of all other routers. f has no gradient. Source: Fedus, Zoph and Shazeer
2021, Switch Transformers (arXiv 2101.03961), equations 4 to 6, over several experts a token and all
layers at once, as Transformers 5 computes it.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
)
from shardwright.execute.numerics.base.top_k_experts import stable_top_k
from shardwright.model.ir.operator import ExpertShape


def tokens_by_expert(expert_ids: torch.Tensor, *, experts: int) -> torch.Tensor:
    """(experts,) in float64: how often each expert's number is among the chosen numbers.

    `bincount` is not used because it waits for the accelerator.
    """
    numbers = expert_ids.flatten()
    counts = torch.zeros(experts, dtype=torch.float64, device=expert_ids.device)
    return counts.index_add_(0, numbers, torch.ones_like(numbers, dtype=torch.float64))


def router_counts(logits: torch.Tensor, *, shape: ExpertShape) -> torch.Tensor:
    """(2, experts) in float64: tokens with each expert among their topk, and probability sums.

    Args:
        logits: (.., experts) of tokens, each counted once.

    The topk follow the probabilities, without the correction that some models add for their choice.
    """
    probabilities = torch.softmax(at_least_float32(logits), dim=-1).detach().flatten(0, -2)
    counts = tokens_by_expert(stable_top_k(probabilities, shape.topk), experts=shape.experts)
    return torch.stack([counts, probabilities.sum(0, dtype=torch.float64)])


def router_rows(total: torch.Tensor, *, shape: ExpertShape) -> torch.Tensor:
    """Number of (token, router) pairs in a sum of `router_counts`: expert choices / topk."""
    return total[0].sum() / shape.topk


def balance_loss(total: torch.Tensor, *, shape: ExpertShape) -> torch.Tensor:
    """Load-balancing loss, experts x sum of f p, from `router_counts` summed over all routers."""
    return shape.experts * (total[0] * total[1]).sum() / router_rows(total, shape=shape) ** 2


def balance_grad(
    logits: torch.Tensor, total: torch.Tensor, *, shape: ExpertShape, factor: float
) -> torch.Tensor:
    """Gradient of `factor` x the load-balancing loss with respect to one router's logits.

    d loss / d softmax_e = experts x f_e / rows, and through the softmax q: q (v - sum q v).

    Args:
        total: as in `balance_loss`.
    """
    probabilities = torch.softmax(at_least_float32(logits), dim=-1)
    probability_grads = (
        factor * shape.experts * total[0] / router_rows(total, shape=shape) ** 2
    ).to(probabilities.dtype)
    return (
        probabilities
        * (probability_grads - (probabilities * probability_grads).sum(-1, keepdim=True))
    ).to(logits.dtype)


def token_share_of_loss(
    logits: torch.Tensor, total: torch.Tensor, *, shape: ExpertShape
) -> torch.Tensor:
    """Part of the load-balancing loss that the tokens of `logits` contribute.

    It is experts x sum over e of f_e x their part of p_e, and its gradient is `balance_grad`.

    Parts of all tokens and routers add up to `balance_loss`.
    """
    probability_grads = shape.experts * total[0] / router_rows(total, shape=shape) ** 2
    return (torch.softmax(logits, dim=-1) * probability_grads.to(logits.dtype)).sum()
