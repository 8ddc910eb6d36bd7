"""Checks of router training: noise, load-balancing loss and choice biases that cannot be exact.

Needs no PyTorch.
"""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.model.find_routers_with_balancing_loss_or_biases import (
    router_shapes,
    selection_biases,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings


def require_trainable(model: Model, settings: Settings) -> None:
    """Raise for router noise, or a balancing loss over no routers or unequal (experts, top-k).

    Raises:
        StrategyError: execute.noise, execute.balance.
    """
    if settings.router_noise:
        raise StrategyError(
            f"router_jitter_noise {settings.router_noise:g}: random factors on the inputs of"
            " routers in training are not executed",
            hint="train without them: --router-noise off",
            rule="execute.noise",
        )
    shapes = {(shape.experts, shape.topk) for shape in router_shapes(model)}
    if settings.load_balancing and len(shapes) != 1:
        shapes_text = (
            " and ".join(f"{topk} of {experts} experts" for experts, topk in sorted(shapes))
            or "none"
        )
        raise StrategyError(
            "the load-balancing loss is a mean over equal routers, and"
            f" {model.name} has {shapes_text}",
            hint="train without it: --load-balancing 0",
            rule="execute.balance",
        )


def require_biases(model: Model, rate: float | None) -> None:
    """Raise if router biases should be updated and the model has none.

    Args:
        rate: rate of the updates; None: no update.

    Raises:
        StrategyError: execute.bias.
    """
    if rate is not None and next(selection_biases(model), None) is None:
        raise StrategyError(
            f"no router of {model.name} has a bias of its choice (e_score_correction_bias), so"
            " --router-bias-update moves nothing",
            hint=(
                "balance experts with --load-balancing COEF"
                if router_shapes(model)
                else "run without --router-bias-update"
            ),
            rule="execute.bias",
        )
