"""The runtime of this package's interpreter (`shardwright.execute`), which runs every legal plan.

It runs on PyTorch's operators, one rank a device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.list_and_set_runtime_options import runtime_with_options
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.releases.torchtitan import V0_2
from shardwright.runtime.runtime_from_sourced_statements import derive, identity_fields, read

_EXECUTE: Final = "shardwright.execute"
_SCHEDULES: Final = (
    "gpipe 1f1b eager-1f1b interleaved-1f1b breadth-first looped-bfs zb-h1 zb-h2 zb-v v-half v-min"
    " dualpipe dualpipe-v chimera gems hanayo terapipe seq-1f1b"
)

_BESIDE: Final = read(
    f"{_EXECUTE}.interpreter.gather_and_reduce_hooks",
    on="overlap_grad_reduce",
    gather_prefetch=1,
    note=(
        "the parameters of the next layer are gathered while one is at work, and the gradients of"
        " the one before are summed"
    ),
)

RUNTIME: Final = derive(
    replace(runtime_with_options(V0_2, (("kernels", "eager"),)), own=(), options=()),
    identity_fields("shardwright", framework="shardwright", version="0.1", released="2026-11"),
    read(
        f"{_EXECUTE}.training.training_loop",
        on="hybrid_sharding optimizer_offload reduce_every_microbatch",
        off=(
            "overlap_param_gather gathers_from_master gather_copy_bytes reduce_copy_bytes"
            " activation_offload"
        ),
        gradient_dtype=Dtype.FP32,
        zero_stages=(0, 1, 2, 3),
        zero_with_pipeline=3,
        note="a step is gathers, all actions, what is left of the sums, update and gathers",
    ),
    _BESIDE,
    read(
        f"{_EXECUTE}.numerics.losses.cross_entropy",
        logits_bytes=10,
        loss_bytes=22,
        note=(
            "logits in 16 bits, in fp32 and their log-softmax at once; a cast, a log-softmax,"
            " backward a softmax that is scaled"
        ),
    ),
    read(
        f"{_EXECUTE}.numerics.losses.cross_entropy",
        logits_blocks_bytes=12,
        split_logits_bytes=2,
        note=(
            "cut by vocabulary: backward has logits in both formats, their fp32 gradient and that"
            " in 16 bits"
        ),
    ),
    read(
        f"{_EXECUTE}.interpreter.run_device_actions_of_step",
        schedules=tuple(_SCHEDULES.split()),
        note="rows of actions in any order",
    ),
    read(
        f"{_EXECUTE}.transport.torch_distributed",
        on="overlap_p2p",
        collective_library="messages",
        note=(
            "posts never wait, and threads take what comes while a device computes; collectives are"
            " messages between each two members"
        ),
    ),
    offers=(
        option_offer("grad_overlap", "on", "--transport groups", _BESIDE),
        option_offer(
            "grad_overlap",
            "off",
            "--transport messages",
            read(
                f"{_EXECUTE}.transport.side_tasks_in_turn",
                off="overlap_grad_reduce",
                gather_prefetch=0,
                note="one thing behind another",
            ),
        ),
    ),
)
