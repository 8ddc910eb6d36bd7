"""Make the serving guide of a request: rules judged by a few simulated deployments."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import shardwright
from shardwright.api.guide.find_value_where_best_plan_changes import find_break_even
from shardwright.api.guide.judge_rule_against_best_plan import EQUAL
from shardwright.api.guide.serving_request_facts_and_simulations import (
    ServingFacts,
    SimulatedDeployment,
    deployment_plan,
    serving_facts,
)
from shardwright.api.guide.serving_rule_and_advice_classes import (
    ServingAdvice,
    ServingRule,
)
from shardwright.api.guide.serving_rules_in_order import SERVING_RULES
from shardwright.api.request_to_command import command_text
from shardwright.errors import UsageError
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Comparison,
    Guide,
    Outcome,
    Rule,
    Verdict,
)
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from shardwright.units import format_percent

_READ_FIELDS: Final = frozenset({"model", "cluster", "seq_len", "global_batch"})
"""Fields of a training request that a serving guide reads."""


def make_serving_guide(
    request: Request, *, answer: int | None = None, progress: Progress | None = None
) -> Guide:
    """Serving guide of a request: the best of a few deployments, and the rules that apply.

    The deployments are simulated, not searched.

    Args:
        request: its sequence length is the tokens of a prompt and its answer, its global batch the
            requests in flight.
        answer: tokens of an answer; None = an eighth of the sequence length.
        progress: function that is told of each rule.

    Raises:
        UsageError: the request has values that are for plans of training, such as pins, or the
            answer is as long as the request.
        ShardwrightError: as `serve_simulate`.
    """
    _require_no_training_values(request)
    tokens, concurrency = request.seq_len, request.global_batch
    answer = max(tokens // 8, 1) if answer is None else answer
    if not 0 < answer < tokens:
        raise UsageError(
            f"--osl {answer:,} of requests of {tokens:,} tokens",
            hint="--seq-len counts prompt and answer, --osl the answer",
        )
    facts = serving_facts(
        ServingRequest(
            model=request.model,
            cluster=request.cluster,
            isl=str(tokens - answer),
            osl=str(answer),
            concurrency=concurrency,
        ),
        prompt=tokens - answer,
        answer=answer,
    )
    if progress is not None:
        progress("simulate the usual deployments", 0, len(SERVING_RULES))
    best = deployment_plan(facts.best)
    rules, skipped = _judged_rules(facts, progress)
    return Guide(
        kind="serving",
        title=(
            f"{request.model} on {request.cluster}: {concurrency:,} requests in flight, prompts of"
            f" {tokens - answer:,} and answers of {answer:,} tokens"
        ),
        command=command_text(request, verb="guide", options=("--serving", "--osl", str(answer))),
        version=shardwright.__version__,
        best=best,
        hint="",
        rules=rules,
        searches=facts.simulations.count,
        skipped=skipped,
    )


def _require_no_training_values(request: Request) -> None:
    """Raise UsageError for a request with values that a serving guide does not read.

    Raises:
        UsageError: it has values that are for plans of training, such as pins.
    """
    unread = [
        field.name
        for field in fields(Request)
        if field.name not in _READ_FIELDS and getattr(request, field.name) != field.default
    ]
    if unread:
        names = ", ".join(name.replace("_", " ") for name in unread)
        raise UsageError(
            f"a serving guide does not read {names}: these are for plans of training",
            hint="drop them with --serving",
        )


def _judged_rules(
    facts: ServingFacts, progress: Progress | None
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """(rules that apply, judged until all work is stopped; names of the rules left out then)."""
    judged: list[Rule] = []
    skipped: list[str] = []
    for number, rule in enumerate(SERVING_RULES):
        if STOP.is_set():
            skipped.append(rule.name)
        elif rule.applies(facts):
            if progress is not None:
                progress(f"simulate: {rule.question}", number, len(SERVING_RULES))
            judged.append(_judged(rule, facts))
    return tuple(judged), tuple(skipped)


def _judged(rule: ServingRule, facts: ServingFacts) -> Rule:
    """A rule with its formulas, and the simulated verdict on its advice."""
    advice = rule.advise(facts)
    return Rule(
        name=rule.name,
        question=rule.question,
        statement=rule.statement,
        source=rule.source,
        formulas=advice.formulas,
        verdict=_verdict(advice, facts) if advice.words else None,
        break_even=(
            None
            if advice.break_even is None
            else find_break_even(advice.break_even, contents=deployment_plan, is_late=STOP.is_set)
        ),
        notes=advice.notes,
    )


def _verdict(advice: ServingAdvice, facts: ServingFacts) -> Verdict:
    """Verdict on the advised deployment: its simulated loss against the best one simulated."""
    best, followed = facts.best, facts.simulated(advice.deployment)
    loss = _loss(best, followed)
    if loss is None:
        outcome, sentence = Outcome.DOES_NOT_FIT, f"Here it is not possible: {followed.why}."
    elif abs(loss) < EQUAL:
        outcome, sentence = Outcome.HOLDS, "It holds here, among the deployments simulated."
    elif loss > 0:
        outcome = Outcome.LOSES
        sentence = f"Here it loses {format_percent(loss)} against the best one simulated."
    else:
        outcome = Outcome.GAINS
        sentence = f"Here it gains {format_percent(-loss)} over the best of the usual deployments."
    return Verdict(
        advice=advice.words,
        pins=(advice.deployment,),
        outcome=outcome,
        followed=deployment_plan(followed),
        loss=loss,
        sentence=sentence,
        others=tuple(
            Comparison(choice=choice, plan=deployment_plan(other), loss=_loss(best, other))
            for choice, text in advice.others
            for other in [facts.simulated(text)]
        ),
    )


def _loss(best: SimulatedDeployment, other: SimulatedDeployment) -> float | None:
    """Time of the same tokens with another deployment over the best's, less 1; None if unknown."""
    return best.tokens_per_s / other.tokens_per_s - 1 if other.tokens_per_s else None
