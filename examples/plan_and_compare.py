"""Plan a model, then look at what a hand-picked strategy would cost instead."""

from __future__ import annotations

import shardwright
from shardwright.strategy.text.grid_notation import print_grid


def main() -> None:
    """Print the certified best strategy for Llama 3 8B on 64 H100, and the loss of another."""
    request = shardwright.Request(
        model="llama-3-8b", cluster="h100-sxm:64", seq_len=8192, global_batch=512
    )
    answer = shardwright.plan(request)
    best = answer.prediction.step_time_s
    print(f"best: {print_grid(answer.grid)}: {best:.3f} s, optimal: {answer.certificate.optimal}")
    other = "tp4 sp dp16 mbs1 zero1"
    slower = shardwright.simulate(request, strategy=other).step_time_s
    print(f"{other}: {slower:.3f} s, {slower / best - 1:+.1%}")


if __name__ == "__main__":
    main()
