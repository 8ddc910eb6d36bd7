"""Make the serving guide of a request: rules judged by a few simulated deployments."""

from __future__ import annotations

import shlex

import shardwright
from shardwright.api.guide.find_break_even import bisect_break_even
from shardwright.api.guide.judge_rule import EQUAL
from shardwright.api.guide.serving_facts import (
    ServingFacts,
    SimulatedDeployment,
    deployment_plan,
    serving_facts,
)
from shardwright.api.guide.serving_rule import (
    ServingAdvice,
    ServingBreakEvenQuestion,
    ServingRule,
)
from shardwright.api.guide.serving_rule_table import SERVING_RULES
from shardwright.errors import UsageError
from shardwright.report.page.view_data.guide_rules_and_verdicts import (
    BreakEven,
    Comparison,
    Guide,
    Outcome,
    Rule,
    Verdict,
)
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from shardwright.units import format_percent


def make_serving_guide(
    model: str, cluster: str, *, tokens: int, answer: int, concurrency: int
) -> Guide:
    """The serving guide of a model on a cluster: the best of a few deployments, and the rules.

    The deployments are simulated, not searched.

    Args:
        tokens: tokens of a request, prompt and answer.
        answer: tokens of an answer.
        concurrency: requests in flight.

    Raises:
        UsageError: the answer is as long as the request. ShardwrightError: as `serve_simulate`.
    """
    if not 0 < answer < tokens:
        raise UsageError(
            f"--osl {answer:,} of requests of {tokens:,} tokens",
            hint="--seq-len counts prompt and answer, --osl the answer",
        )
    request = ServingRequest(
        model=model,
        cluster=cluster,
        isl=str(tokens - answer),
        osl=str(answer),
        concurrency=concurrency,
    )
    facts = serving_facts(request, prompt=tokens - answer, answer=answer)
    best = facts.best
    rules = tuple(_judged(rule, facts, best) for rule in SERVING_RULES if rule.applies(facts))
    words = ["shardwright", "guide", model, cluster, "--serving", "--seq-len", str(tokens)]
    return Guide(
        kind="serving",
        title=(
            f"{model} on {cluster}: {concurrency:,} requests in flight, prompts of"
            f" {tokens - answer:,} and answers of {answer:,} tokens"
        ),
        command=shlex.join([*words, "--global-batch", str(concurrency), "--osl", str(answer)]),
        version=shardwright.__version__,
        best=deployment_plan(best),
        hint="",
        rules=rules,
        searches=facts.simulations.count,
    )


def _judged(rule: ServingRule, facts: ServingFacts, best: SimulatedDeployment) -> Rule:
    """A rule with its formulas, and the simulated verdict on its advice."""
    advice = rule.advise(facts)
    return Rule(
        name=rule.name,
        question=rule.question,
        statement=rule.statement,
        source=rule.source,
        formulas=advice.formulas,
        verdict=_verdict(advice, facts, best) if advice.words else None,
        break_even=None if advice.break_even is None else _break_even(advice.break_even),
        notes=advice.notes,
    )


def _break_even(question: ServingBreakEvenQuestion) -> BreakEven:
    """Neighbouring values between which the simulated deployment gets or loses a property."""
    return bisect_break_even(
        question.axis,
        question.values,
        question.change,
        has=lambda value: question.has(question.simulated_at(value)),
        plan_at=lambda value: deployment_plan(question.simulated_at(value)),
        is_late=lambda: False,
    )


def _verdict(advice: ServingAdvice, facts: ServingFacts, best: SimulatedDeployment) -> Verdict:
    """Verdict on the advised deployment: its simulated loss against the best one simulated."""
    followed = facts.simulated(advice.deployment)
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
