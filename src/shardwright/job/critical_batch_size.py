"""Critical batch size: tokens a step beyond which a larger batch saves few steps.

Training to a loss with B tokens a step takes S_min (1 + B_crit / B) steps and D_min (1 + B /
B_crit) tokens (McCandlish et al. 2018, arXiv 1812.06162, section 2.3; Kaplan et al. 2020, arXiv
2001.08361, equation 5.1 in this form). So a step of B tokens at a rate of R tokens a second comes
nearer to the loss at R / (1 + B / B_crit): at the critical batch half of the tokens are spent for
the other half of the steps.
"""

from __future__ import annotations

from typing import Final

CRITICAL_TOKENS: Final = 2e8
CRITICAL_EXPONENT: Final = 0.21
"""B_crit = 2e8 tokens / L^(1 / 0.21), L in nats a token (Kaplan et al. 2020, equation 1.4)."""
LOSS_OF_PARAMETERS: Final = (6.4e13, 0.076)
LOSS_OF_TOKENS: Final = (1.8e13, 0.103)
"""N_c, alpha_N and D_c, alpha_D of L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D
(equation 1.5, table 2)."""
TOKENS_PER_PARAMETER: Final = 20.0
"""Tokens for each parameter of a compute-optimal training run (Hoffmann et al. 2022, arXiv
2203.15556, table 3): the default."""
SOURCE: Final = (
    "Kaplan et al. 2020, arXiv 2001.08361, equations 1.4 and 1.5: dense models of GPT-2's kind,"
    " extrapolated"
)


def predicted_loss(*, parameters: float, tokens: float) -> float:
    """Loss in nats a token after small-batch training on `tokens` (Kaplan et al. 2020, eq. 1.5).

    This is equation 1.5 of Kaplan et al. 2020.
    """
    (most, by_size), (data, by_data) = LOSS_OF_PARAMETERS, LOSS_OF_TOKENS
    return float(((most / parameters) ** (by_size / by_data) + data / tokens) ** by_data)


def critical_batch(*, parameters: float, tokens: float) -> float:
    """Critical batch size in tokens a step at a run's final loss, by Kaplan et al. 2020.

    Args:
        parameters: number of parameters that a token multiplies with (of a mixture of experts, the
            active ones).
        tokens: training tokens.
    """
    per_token = predicted_loss(parameters=parameters, tokens=tokens)
    return float(CRITICAL_TOKENS / per_token ** (1 / CRITICAL_EXPONENT))


def useful_share(*, batch: float, critical: float) -> float:
    """Useful fraction of a step's tokens, 1 / (1 + batch / critical batch)."""
    return 1 / (1 + batch / critical)
