"""Steps of two ranks on the processor at hand, this package's beside PyTorch's: `python -m
benchmarks.beside_ranks [MODEL ..]`, alone.

Replicas beside DistributedDataParallel, zero 3 beside FSDP2 (`fully_shard` of each layer), the same
decoder, float32, two samples of 256 tokens a rank; a step of each in turn, the median of the pairs'
ratios.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bench_training import RULE, SAMPLES, SIZES, TOKENS, decoder
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.native.decoder_stage_as_torch_modules import NativeStage
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.execute.training.training_loop import step_task
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.execute.transport.torch_distributed_collectives import GLOO
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.text.grid_notation import parse_grid

RANKS, PAIRS = 2, 9
Step = Callable[[], object]


def write(line: str) -> None:
    """Say it at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def seconds(step: Step) -> float:
    """Of one step that all ranks begin together."""
    dist.barrier()
    start = perf_counter()
    step()
    return perf_counter() - start


def theirs(module: nn.Module, batch: dict[str, torch.Tensor], *, sharded: bool) -> Step:
    """A step of PyTorch's own engine; of this rank's half of the samples."""
    whole: nn.Module
    if sharded:
        for layer in module.children():
            if isinstance(layer, nn.ModuleList):
                for one in layer:
                    fully_shard(one)
        whole = fully_shard(module)
    else:
        whole = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(
        whole.parameters(),
        lr=RULE.rate,
        betas=RULE.betas,
        eps=RULE.eps,
        weight_decay=RULE.decay,
        fused=True,
    )
    half = SAMPLES // RANKS
    rows = slice(dist.get_rank() * half, (dist.get_rank() + 1) * half)

    def step() -> None:
        functional.cross_entropy(
            whole(batch["text"][rows]).flatten(0, 1), batch["labels"][rows].flatten()
        ).backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), RULE.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain_module(model: Model, job: TrainingJob) -> NativeStage:
    """The whole decoder as a module, with the parameters that the interpreter begins with."""
    work, _ = prepare_step(model, job, single_device_plan(model, job))
    module = NativeStage(work.stages[0][0], model=model, settings=model.settings).to_empty(
        device="cpu"
    )
    source = seeded(model, seed=0, dtype=torch.float32)
    with torch.no_grad():
        for parameter, key, lying in module.parameter_keys():
            module.get_parameter(parameter).copy_(lying.to_module(source(key)))
    return module


def _driven(
    network: DistributedTransport,
    own: DeviceState,
    known: PreparedTraining,
    batch: dict[str, torch.Tensor],
) -> None:
    network.run_tasks({own.device: step_task(own, known, batch=batch)})


def beside(rank: int, port: int, names: tuple[str, ...]) -> None:
    """What a rank does: every model, replicas and shards, over each transport; rank 0 prints."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for name in names:
        model = decoder(name)
        job = TrainingJob(
            sequences=(SequenceLength(name="text", tokens=TOKENS),), global_batch=SAMPLES
        )
        tokens = torch.randint(
            0, model.vocab, (SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(0)
        )
        batch = {"text": tokens[:, :-1], "labels": tokens[:, 1:]}
        for strategy, sharded in (("dp2 mbs2 zero0", False), ("dp2 mbs2 zero3", True)):
            plain = theirs(plain_module(model, job), batch, sharded=sharded)
            plan = plan_of(parse_grid(strategy, devices=RANKS), model=model, global_batch=SAMPLES)
            for backend in ("", GLOO):
                known = prepare_training(model, job, plan, rule=RULE, dtype=torch.float32)
                own = create_device_state(
                    rank, known, source=seeded(model, seed=0, dtype=torch.float32)
                )
                with DistributedTransport({0: 0, 1: 1}, backend=backend) as network:
                    ours = partial(_driven, network, own, known, batch)

                    for _ in range(2):
                        ours(), plain()
                    pairs = [(seconds(ours), seconds(plain)) for _ in range(PAIRS)]
                if rank == 0:
                    ratio, one, other = (
                        median(found)
                        for found in zip(*((a / b, a, b) for a, b in pairs), strict=True)
                    )
                    how = "groups" if backend else "messages"
                    write(
                        f"{name} {strategy} by {how}: {one:.3f} s, {other:.3f} s, ratio {ratio:.3f}"
                    )
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(beside, args=(29_657, tuple(sys.argv[1:]) or tuple(SIZES)), nprocs=RANKS)
