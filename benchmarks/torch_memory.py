"""Peak memory of a 7B decoder on one of 64 ranks: PyTorch's tracker on a fake cluster against the
prediction. Minutes; needs torch.

`python -m benchmarks.torch_memory` from the repository's root, with src on the path.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Final

from shardwright.simulator.simulate_plan import footprint_of_grid
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.units import GIB
from tests.torch_checks import ours
from tests.torch_checks.blocks import Style
from tests.torch_checks.sharded import Setting, measured

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
SETTINGS: Final = (
    Setting(shard=64, tokens=2048),
    Setting(shard=8, tp=8, tokens=2048),
    Setting(shard=8, tp=8, sequence_parallel=True, tokens=2048),
    Setting(shard=8, tp=8, sequence_parallel=True, recompute="selective", tokens=2048),
    Setting(shard=8, tp=8, sequence_parallel=True, recompute="full", tokens=2048),
)


def predicted(setting: Setting) -> int:
    """Our peak of allocated bytes, of what a tracker of tensors sees."""
    grid = Grid(
        dp=setting.shard,
        tp=setting.tp,
        sp=setting.sequence_parallel,
        zero=3,
        recompute=Recompute(setting.recompute),
    )
    problem = ours.problem_for(CONFIG, runtime=ours.FUSED, tokens=setting.tokens, batch=grid.dp)
    (stage,), _ = footprint_of_grid(problem, grid)
    return sum(size for name, size in stage.items if name not in ours.OUTSIDE)


def main() -> None:
    warnings.simplefilter("ignore")
    for setting in SETTINGS:
        got, mine = measured(CONFIG, setting, Style(flash=True)), predicted(setting)
        form = (
            f"fsdp{setting.shard} tp{setting.tp}{' sp' if setting.sequence_parallel else ''}"
            f" recompute={setting.recompute}"
        )
        sys.stdout.write(
            f"{form}: torch {got.peak / GIB:.3f} GiB, predicted {mine / GIB:.3f} GiB,"
            f" {mine / got.peak - 1:+.1%}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
