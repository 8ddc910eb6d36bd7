"""One rank's state on PyTorch's own engine: DTensor, FSDP2 and pipelining, with our order and our
weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.device_state.device_parameters import Source, parameter_of
from shardwright.execute.interpreter.device_walk import Batch
from shardwright.execute.native.context_parallel_tokens import Tokens, context_of, tokens_of
from shardwright.execute.native.decoder_module import Stage
from shardwright.execute.native.device_meshes import Meshes, grid_meshes
from shardwright.execute.native.load_balancing import NativeBalance, native_balance
from shardwright.execute.native.supported_grids import require_expressible
from shardwright.execute.native.tensor_parallel_styles import place
from shardwright.execute.native.tied_parameters import Copies, copies
from shardwright.execute.native.torch_private import local, pipeline
from shardwright.execute.numerics.losses.logit_scaling import scaled_logits
from shardwright.execute.training.optimizer import AdamW
from shardwright.execute.training.weight_decay_exemptions import is_spared
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.orders.pytorch_csv import schedule_csv
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_rules import require_legal
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.model_counts import grid_facts
from shardwright.strategy.plan.order import Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_plan import require_valid

IGNORED = -100
"""PyTorch's label of a token without a loss."""


@dataclass(slots=True, kw_only=True)
class Engine:
    """One rank's state of a run.

    Args:
        plan: of the grid.
        tokens: of a batch.
        stages: its chunks;
        places: their numbers among all `chunks`.
        runtime: of the pipeline; None without one.
        loss: (logits, labels) -> sum over tokens / the step's tokens.
        balance: the load-balancing loss; None: there is none.
        pieces: this rank's elements of each of `parameters`;
        optimizer: of those.
        microbatches: of a replica.
        shared: parameters of which another stage has a copy.
    """

    grid: Grid
    plan: Plan
    meshes: Meshes
    tokens: Tokens
    stages: list[Stage]
    places: tuple[int, ...]
    chunks: int
    runtime: Any
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    pieces: list[torch.Tensor]
    optimizer: torch.optim.Optimizer
    rule: AdamW
    microbatches: int
    device: str
    shared: tuple[Copies, ...]
    balance: NativeBalance | None = None
    steps: int = 0

    def given(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank's tokens of a step's, and their labels."""
        tokens, labels = (
            self.tokens.of(batch[name]).to(self.device) for name in ("text", "labels")
        )
        return tokens, labels

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context with the default dtype in which logits and losses of this rank are computed."""
        shards: AbstractContextManager[object] = (
            loss_parallel() if self.grid.tp > 1 else nullcontext()
        )
        with shards, warnings.catch_warnings():
            # Logits are a view of a DTensor's local part; nothing here writes into them.
            warnings.filterwarnings(
                "ignore", message="FSDP2-wrapped module .* returned a view tensor"
            )
            yield

    def pipeline(self) -> Any:
        """A runtime of the plan's order over this rank's stages."""
        group, on = self.meshes.dense["pp"].get_group(), torch.device(self.device)
        held = [
            PipelineStage(stage, place, self.chunks, on, group=group)
            for stage, place in zip(self.stages, self.places, strict=True)
        ]
        return pipeline(
            held, csv=schedule_csv(self.plan), microbatches=self.microbatches, loss=self.loss
        )

    def writes(self, parameter: torch.nn.Parameter, number: int) -> bool:
        """True if this rank saves these elements of a parameter, among the ranks that have them,
        which take turns by number.
        """
        if any(parameter is copy.last for copy in self.shared):
            return False
        mesh, cut = self.meshes.dense, set()
        if isinstance(parameter, DTensor):
            names = parameter.device_mesh.mesh_dim_names or ()
            mesh = self.meshes.of(names)
            cut = {
                name
                for name, placement in zip(names, parameter.placements, strict=True)
                if not isinstance(placement, Replicate)
            }
        own, ranks = 0, 1
        for name in mesh.mesh_dim_names or ():
            if name != "pp" and name not in cut:
                size = int(mesh[name].size())
                own, ranks = own * size + int(mesh.get_local_rank(name)), ranks * size
        return number % ranks == own

    @property
    def first(self) -> bool:
        """True if the rank has the first chunk."""
        return self.places[0] == 0

    @property
    def last(self) -> bool:
        """True if the rank has the last chunk."""
        return self.places[-1] == self.chunks - 1

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All that are trained on this rank, each once."""
        return _trained(self.stages)


def _trained(stages: list[Stage]) -> list[torch.nn.Parameter]:
    return list(dict.fromkeys(p for stage in stages for p in stage.parameters() if p.requires_grad))


def _by_decay(
    stages: list[Stage], pieces: list[torch.Tensor], rule: AdamW, *, model: Model
) -> list[dict[str, Any]]:
    """Groups for PyTorch's optimizer of the pieces of all trained parameters: those with weight
    decay, and those that it spares.
    """
    keys = {
        id(stage.get_parameter(name)): key for stage in stages for name, key, _ in stage.keyed()
    }
    spared = [is_spared(parameter_of(model, keys[id(p)]), rule.spared) for p in _trained(stages)]
    groups = ((False, rule.decay), (True, 0.0))
    return [
        {"params": own, "weight_decay": decay}
        for kind, decay in groups
        if (own := [piece for piece, one in zip(pieces, spared, strict=True) if one == kind])
    ]


def _loss(
    grid: Grid, meshes: Meshes, *, settings: Settings, scale: float
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Cross-entropy of logits whose vocabulary is cut by tp, summed over tokens; negative labels
    have none.
    """

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wanted = torch.where(labels < 0, IGNORED, labels).flatten()
        flat: torch.Tensor = logits.flatten(0, 1)
        if flat.dtype.itemsize < 4:
            flat = flat.float()
        flat = scaled_logits(flat, settings)
        if grid.tp > 1:
            flat = DTensor.from_local(flat, meshes.dense["tp"], [Shard(-1)], run_check=False)
            wanted = DTensor.from_local(wanted, meshes.dense["tp"], [Replicate()], run_check=False)
        found = functional.cross_entropy(flat, wanted, reduction="sum", ignore_index=IGNORED)
        # Scaled last: the pipeline detaches a loss in place, which a view of a DTensor does not
        # allow.
        return (found.to_local() if isinstance(found, DTensor) else found) * scale

    return loss


def engine(
    model: Model,
    job: TrainingJob,
    grid: Grid,
    *,
    source: Source,
    rule: AdamW | None = None,
    settings: Settings | None = None,
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype | None = None,
    order: Table | None = None,
    device: str = "cpu",
) -> Engine:
    """This rank's part of `grid`, ready for its first step. All ranks of the process group call it.

    Args:
        dtype: of parameters, gradients and states between steps.
        compute: of products and activations; None = `dtype`.
        order: of the stages' actions instead of the grid's schedule, which then only says where
            they are.

    Raises:
        StrategyError: ``run.world``: another number of ranks than the grid's devices; rules
        ``native.*``, ``grid.*`` and of plans.
    """
    chosen_settings = settings or model.settings
    require_expressible(replace(model, settings=chosen_settings), grid, job=job)
    facts = grid_facts(
        model, devices=grid.devices, global_batch=job.global_batch, seq_len=job.sequence_length
    )
    require_legal(grid, facts=facts, general=True)
    if dist.get_world_size() != grid.devices:
        raise StrategyError(
            f"the grid has {grid.devices} devices, {dist.get_world_size()} ranks run",
            hint=f"start {grid.devices} ranks",
            rule="run.world",
        )
    plan = plan_of(grid, model=model, global_batch=job.global_batch)
    if order is not None:
        plan = replace(plan, orders=(order,))
    require_valid(plan, model=model, global_batch=job.global_batch)
    meshes, chosen = grid_meshes(grid, experts=facts.experts > 0, device=device), rule or AdamW()
    (parts,) = plan_stages(plan, model=model)
    rank = dist.get_rank()
    mine = [part for part in parts if rank in part.devices]
    context = context_of(
        mine[0], meshes.context, rank=rank, length=job.sequence_length, gather=grid.gather
    )
    stages = [Stage(part, model=model, settings=chosen_settings, context=context) for part in mine]
    place(stages, meshes, grid, source=source, dtypes=(dtype, compute or dtype), device=device)
    loss = _loss(
        grid, meshes, settings=chosen_settings, scale=1.0 / (job.global_batch * job.sequence_length)
    )
    microbatches = plan.lanes[0].microbatches
    # The update is element by element: of a DTensor it would work out anew how each of its products
    # is cut.
    pieces = [local(p.detach()) for p in _trained(stages)]
    optimizer = torch.optim.AdamW(
        _by_decay(stages, pieces, chosen, model=model),
        lr=chosen.rate,
        betas=chosen.betas,
        eps=chosen.eps,
        foreach=True,
    )
    own = Engine(
        grid=grid,
        plan=plan,
        meshes=meshes,
        tokens=tokens_of(mine[0], rank=rank, microbatches=microbatches, length=job.sequence_length),
        stages=stages,
        places=tuple(part.chunk for part in mine),
        chunks=len(parts),
        runtime=None,
        loss=loss,
        pieces=pieces,
        optimizer=optimizer,
        rule=chosen,
        microbatches=microbatches,
        device=device,
        shared=copies(model, stages, mine, parts, rank=rank),
        balance=native_balance(
            stages, grid, coefficient=chosen_settings.load_balancing, microbatches=microbatches
        ),
    )
    if grid.pp > 1:
        own.runtime = own.pipeline()
    return own
