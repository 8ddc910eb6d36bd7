"""The numbers of a request that rules of thumb use: sizes of model, batch, devices and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from shardwright.api.guide.best_plan_record import BestPlan
from shardwright.api.request_to_problem import capacity_of, facts_of, problem_of, with_defaults
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.absorbed_latent_attention_sizes import latent_of
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.training_problem import Problem
from shardwright.search.search_request import Request
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Sizes and rates of one request, its best plan, and the search of its guide.

    Args:
        best: the best plan; without a grid where nothing fits.
        search: function that finds the best plan of a request, each once.
        peak_flops: dense FLOP/s of one device in the job's number format, by its data sheet.
        memory_bytes: bytes of a device that a program may allocate.
        usable_bytes: bytes that plans may use.
        island: devices of one scale-up domain.
        island_bytes_per_s, network_bytes_per_s: one device's peak rate each way inside the domain,
            and between nodes.
        weight_bytes, gradient_bytes, state_bytes: bytes a parameter of weights, of accumulated
            gradients, and of the optimizer's states.
        experts, topk: experts of a layer and experts that a token uses; 0 in a dense model.
    """

    request: Request
    problem: Problem
    counts: GridFacts
    best: BestPlan
    search: Callable[[Request], BestPlan]
    devices: int
    peak_flops: float
    memory_bytes: int
    usable_bytes: int
    island: int
    island_bytes_per_s: float
    network_bytes_per_s: float
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    experts: int
    topk: int

    @property
    def grid(self) -> Grid:
        """The best plan's grid."""
        assert self.best.grid is not None
        return self.best.grid

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return self.problem.model.num_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that a token uses."""
        return self.problem.model.num_active_parameters

    @property
    def unsharded_bytes(self) -> int:
        """Bytes of weights, gradients and optimizer states of the whole model."""
        return self.parameters * (self.weight_bytes + self.gradient_bytes + self.state_bytes)

    @property
    def layer_parameters(self) -> int:
        """Parameters of the largest layer; with experts, active parameters / layers."""
        if self.experts:
            return max(self.active_parameters // max(self.counts.layers, 1), 1)
        blocks = self.problem.model.blocks
        return max((block.num_parameters for block in blocks if block.is_layer), default=1)

    @property
    def feed_forward_width(self) -> int:
        """Columns of the feed-forward of most layers, else of an expert; 4 h without either."""
        model = self.problem.model
        dense = _most_common_width(model, (OperatorClass.MLP, OperatorClass.SHARED))
        return dense or _most_common_width(model, (OperatorClass.EXPERTS,)) or 4 * model.hidden

    def microbatches(self, grid: Grid) -> int:
        """Microbatches that one replica runs in a step under a grid."""
        return self.request.global_batch // (grid.dp * grid.microbatch)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.request.seq_len * self.request.global_batch

    @property
    def islands(self) -> float:
        """Scale-up domains that the devices fill: devices / island, at least 1."""
        return self.devices / min(self.island, self.devices)

    @property
    def has_latent_attention(self) -> bool:
        """True if some layer has latent attention."""
        return any(latent_of(block) is not None for block in self.problem.model.blocks)


def _most_common_width(model: Model, classes: tuple[OperatorClass, ...]) -> int:
    """Feed-forward columns of the operators of some classes, as most layers have; 0 = none."""
    widths: Counter[int] = Counter()
    for run in model.runs:
        for operator in model.blocks[run.block].operators:
            if operator.klass in classes:
                extents = (*operator.reads, *operator.writes)
                widths.update({x.runs: run.count for x in extents if x.dim is Dim.FFN})
    return max(widths, key=lambda width: widths[width], default=0)


def facts_of_request(
    request: Request, best: BestPlan, search: Callable[[Request], BestPlan]
) -> RequestFacts:
    """Numbers of a request that guide rules read: devices, FLOP/s, bytes, bandwidths, experts."""
    full = with_defaults(request)
    problem = problem_of(full)
    node, job = problem.cluster.node, problem.job
    shape = expert_shape(problem.model)
    return RequestFacts(
        request=request,
        problem=problem,
        counts=facts_of(problem),
        best=best,
        search=search,
        devices=problem.cluster.num_devices,
        peak_flops=node.accelerator.peak(job.compute),
        memory_bytes=smallest_memory_bytes(problem.cluster),
        usable_bytes=capacity_of(full, problem),
        island=node.island,
        island_bytes_per_s=node.scale_up.bandwidth,
        network_bytes_per_s=node.network_per_device.bandwidth,
        weight_bytes=job.parameter.bits // 8,
        gradient_bytes=problem.runtime.gradient_dtype.bits // 8,
        state_bytes=problem.optimizer.state_bytes,
        experts=shape.experts if shape else 0,
        topk=shape.topk if shape else 0,
    )


def expert_shape(model: Model) -> ExpertShape | None:
    """Numbers of experts of the first layer that has some; None in a dense model."""
    return next(
        (
            operator.experts
            for block in model.blocks
            for operator in block.operators
            if operator.experts is not None
        ),
        None,
    )
