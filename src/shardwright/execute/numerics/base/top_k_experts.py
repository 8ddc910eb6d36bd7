"""Top-k choice of experts for each token, and each chosen expert's share."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
)
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import ExpertShape


def chosen_experts(
    logits: torch.Tensor,
    parameters: Mapping[str, torch.Tensor],
    *,
    shape: ExpertShape,
    settings: Settings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, numbers) of each token's topk experts, by softmax or sigmoid scores and groups.

    Ties go to the lower number. Shares have the dtype of `logits`, numbers are int64.

    Scores are softmax(logits); they are sigmoid(logits) where the settings say so or where there is
    a ``correction``, which is added to the scores for the choice only. Where the choice is limited
    to groups of experts, a group ranks by its best score, or with a correction by the sum of its
    two best. Shares are the scores of the chosen experts, normalised to add up to one where the
    settings say so, times the settings' factor, times the experts' learned scales.

    Args:
        logits: (..., experts).
        parameters: ``correction`` and ``expert_scale`` (experts), where the operator has them.

    Worked: scores .4 .1 .3 .2 in two groups of two, one of them allowed, two experts a token: the
        groups' best are .4 and .3, so experts 0 and 1 are chosen, although 2 scores more than 1;
        shares .8 and .2, or .4 and .1 where they are not normalised.

    Sources: DeepSeek-AI 2024, DeepSeek-V2 (arXiv 2405.04434), section 2.2.2; DeepSeek-V3 (arXiv
    2412.19437), section 2.1.2; the ranking of groups follows the authors' code.
    """
    corrected = "correction" in parameters
    scores = (
        torch.sigmoid(at_least_float32(logits))
        if corrected or settings.sigmoid_scores
        else torch.softmax(at_least_float32(logits), dim=-1)
    )
    ranked = scores.detach() + parameters["correction"].detach() if corrected else scores.detach()
    if shape.groups:
        grouped = ranked.unflatten(-1, (shape.of_groups, -1))
        group_scores = grouped.topk(
            min(2 if corrected else 1, grouped.shape[-1]), dim=-1
        ).values.sum(-1)
        allowed = torch.zeros_like(group_scores, dtype=torch.bool).scatter(
            -1, stable_top_k(group_scores, shape.groups), True
        )
        ranked = grouped.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(-2)
    expert_ids = stable_top_k(ranked, shape.topk)
    shares = scores.gather(-1, expert_ids)
    if settings.shares_add_up:
        shares = shares / shares.sum(-1, keepdim=True)
    if settings.share_factor != 1.0:
        shares = shares * settings.share_factor
    if "expert_scale" in parameters:
        shares = shares * parameters["expert_scale"][expert_ids]
    return shares.to(logits.dtype), expert_ids


def stable_top_k(values: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` highest values of the last dim, ties to the lower index."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices[..., :count]
