"""Facts of training and serving requests, as rules of the guide get them."""

from __future__ import annotations

from shardwright.api.guide.best_plan_record import BestPlan
from shardwright.api.guide.request_facts import RequestFacts, facts_of_request
from shardwright.api.guide.serving_request_facts_and_simulations import ServingFacts, serving_facts
from shardwright.search.search_request import Request
from shardwright.serving.unparsed_simulation_inputs import ServingRequest


def training_facts_without_plans(request: Request) -> RequestFacts:
    """Facts of a request whose searches find no plan: a rule's questions are then requests only."""
    return facts_of_request(
        request, BestPlan(request=request), lambda other: BestPlan(request=other)
    )


def serving_facts_of(
    model: str, cluster: str, *, prompt: int, answer: int, load: int, precision: str = ""
) -> ServingFacts:
    """Facts of a serving request, with the simulations of its deployments."""
    request = ServingRequest(
        model=model,
        cluster=cluster,
        isl=str(prompt),
        osl=str(answer),
        concurrency=load,
        precision=precision,
    )
    return serving_facts(request, prompt=prompt, answer=answer)
