"""The numbers of a serving request that rules use, and its simulated deployments."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.guide.request_facts import expert_shape
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import powers_of_two
from shardwright.api.report.serving_latencies_content import serving_command
from shardwright.api.simulate_deployment import serve_simulate, serving_problem
from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import GuidePlan
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.simulation.serving_answer import ServingAnswer
from shardwright.serving.step_times.build_step_table import MULTIPLIES_IN
from shardwright.serving.unparsed_simulation_inputs import ServingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDeployment:
    """A deployment with its simulation, or the reason why it cannot be simulated."""

    request: ServingRequest
    answer: ServingAnswer | None = None
    why: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers a second; 0 where there is no simulation."""
        return 0.0 if self.answer is None else self.answer.metrics.tokens_per_second


class DeploymentSimulations:
    """Simulates deployments of one request, and keeps the result of each."""

    def __init__(self) -> None:
        self._done: dict[ServingRequest, SimulatedDeployment] = {}

    @property
    def count(self) -> int:
        """Number of different deployments and loads that were simulated."""
        return len(self._done)

    def simulate(self, request: ServingRequest) -> SimulatedDeployment:
        """The simulation of a request, made once; a failure is kept with its reason."""
        if request not in self._done:
            try:
                simulated = SimulatedDeployment(request=request, answer=serve_simulate(request))
            except ShardwrightError as error:
                simulated = SimulatedDeployment(request=request, why=error.message)
            self._done[request] = simulated
        return self._done[request]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFacts:
    """Sizes and rates of a serving request, and its simulations.

    Args:
        request: without a deployment.
        prompt, answer: tokens of a prompt and of an answer.
        island: devices of a scale-up domain.
        peak_flops: dense FLOP/s of a device in the format of the activations' products.
        memory_bytes_per_s: peak bytes/s of a device's memory.
        weight_bytes: bytes of a weight as it is stored.
        experts, topk: experts of a layer and experts that a token uses; 0 in a dense model.
    """

    request: ServingRequest
    problem: ServingProblem
    simulations: DeploymentSimulations
    prompt: int
    answer: int
    devices: int
    island: int
    peak_flops: float
    memory_bytes_per_s: float
    weight_bytes: float
    experts: int
    topk: int

    def simulated(
        self, deployment: str, *, concurrency: int = 0, prompt: int = 0
    ) -> SimulatedDeployment:
        """The cached simulation of a deployment text; load and prompt 0 = the request's own."""
        request = replace(self.request, deployment=deployment)
        if concurrency:
            request = replace(request, concurrency=concurrency)
        if prompt:
            request = replace(request, isl=str(prompt))
        return self.simulations.simulate(request)

    @property
    def _widths(self) -> list[int]:
        """Powers of two that divide the number of devices."""
        return [width for width in powers_of_two(1, self.devices) if self.devices % width == 0]

    @property
    def candidates(self) -> tuple[str, ...]:
        """Deployments on all devices to compare: TP replicas; with experts also EP, DP attention.

        None has pipeline stages: the simulator lets a request begin its next token before the last
        one has left the pipeline.
        """
        widths = self._widths
        texts = [f"agg {self.devices // width}x(tp{width})" for width in widths]
        inside = [width for width in widths if 1 < width <= self.island]
        for width in inside if self.experts else ():
            texts.append(f"agg {self.devices // width}x(tp{width} ep{width})")
            texts.append(f"agg {self.devices // width}x(dpa{width} ep{width})")
        return tuple(texts)

    @property
    def best(self) -> SimulatedDeployment:
        """Simulated candidate deployment with the most tokens a second."""
        return max(
            map(self.simulated, self.candidates), key=lambda deployment: deployment.tokens_per_s
        )

    @property
    def smallest_width(self) -> int:
        """Least TP degree with which the model and a request fit; 0 where none does."""
        return next(
            (
                width
                for width in self._widths
                if self.simulated(f"agg {self.devices // width}x(tp{width})").answer is not None
            ),
            0,
        )


def serving_facts(request: ServingRequest, *, prompt: int, answer: int) -> ServingFacts:
    """Numbers of a serving request that rules read: devices, island, FLOP/s, bytes/s, experts."""
    problem, _ = serving_problem(request)
    accelerator = problem.cluster.node.accelerator
    shape = expert_shape(problem.model)
    precision = problem.job.precision
    operators = precision.experts if shape else precision.mlp
    multiplied = MULTIPLIES_IN.get(operators.activations, Dtype.BF16)
    return ServingFacts(
        request=request,
        problem=problem,
        simulations=DeploymentSimulations(),
        prompt=prompt,
        answer=answer,
        devices=problem.cluster.num_devices,
        island=problem.cluster.node.island,
        peak_flops=accelerator.peak(multiplied) or accelerator.peak(Dtype.FP16),
        memory_bytes_per_s=accelerator.memory_bandwidth,
        weight_bytes=operators.weights.bytes,
        experts=shape.experts if shape else 0,
        topk=shape.topk if shape else 0,
    )


def deployment_plan(simulated: SimulatedDeployment) -> GuidePlan:
    """Guide contents of a simulated deployment; step = mean seconds of a further token (TPOT)."""
    command = serving_command(simulated.request)
    if simulated.answer is None:
        return GuidePlan(command=command, simulated=True, why=simulated.why)
    metrics = simulated.answer.metrics
    return GuidePlan(
        command=command,
        strategy=simulated.request.deployment,
        step_s=metrics.tpot.mean,
        tokens_per_s=metrics.tokens_per_second,
        memory_share=max(pool.cache_used for pool in simulated.answer.pools),
        simulated=True,
    )
