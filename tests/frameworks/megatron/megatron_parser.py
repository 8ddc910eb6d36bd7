"""Megatron-LM's own parser on a machine without a GPU: a program that reads {"devices", "words"}
and says what was parsed, as JSON.

It asks the device for its generation and PyTorch's typing for a name that older Pythons lack; both
are answered here.
"""

from __future__ import annotations

import json
import os
import sys
import typing
from types import SimpleNamespace

import torch  # before typing is completed, which it would else refuse
import typing_extensions

HOPPER = (9, 0)


def main() -> None:
    """Parse and validate."""
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
    torch.cuda.get_device_capability = lambda *_: HOPPER
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(
        major=HOPPER[0], minor=HOPPER[1], total_memory=80 << 30
    )
    torch.cuda.current_device = lambda: 0
    asked = json.load(sys.stdin)
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(asked["devices"]),
        **asked["environment"],
    }
    beside = (
        "--train-iters",
        "10",
        "--lr",
        "1e-4",
        "--tokenizer-type",
        "NullTokenizer",
        "--mock-data",
    )
    sys.argv = ["pretrain_gpt.py", *asked["words"], *beside]
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    from megatron.training import arguments

    found = arguments.validate_args(arguments.parse_args(), {})
    layout = found.pipeline_model_parallel_layout
    if layout is not None:
        text = next(word for word in asked["words"] if "|" in word)
        PipelineParallelLayerLayout.from_str(
            text, found.pipeline_model_parallel_size
        ).validate_layer_layout(found.num_layers, None)
    sys.stdout.write(
        json.dumps(
            {
                "tp": found.tensor_model_parallel_size,
                "pp": found.pipeline_model_parallel_size,
                "cp": found.context_parallel_size,
                "ep": found.expert_model_parallel_size,
                "dp": found.data_parallel_size,
                "layers": found.num_layers,
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
