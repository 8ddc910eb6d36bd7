"""View of the answer: a card with step time, throughput, cost, memory and proof."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.markup.quantity_card import append_card, append_figure, append_gauge
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.next_change_sentences import best_improvement


def answer_view(report_json: Any) -> View:
    """View of the answer: card of step, rate, cost and memory; best improvement as next change."""
    time = report_json.get("time")
    return View(
        name="answer",
        question="What is the answer?",
        reading=_reading(report_json["answer"]),
        next_change="" if time is None else best_improvement(time),
        chart=_append_card,
    )


def _reading(answer_json: Any) -> str:
    """Template of the sentence that says how long a step takes, whether it fits, and the claim."""
    step = (
        "A step takes {/answer/step_s:seconds}, and the fullest device holds"
        " {/answer/reserved_bytes:bytes} of {/answer/capacity_bytes:bytes}."
        if answer_json["fits"]
        else "It does not fit: the fullest device needs {/answer/reserved_bytes:bytes}, and a"
        " program can allocate {/answer/capacity_bytes:bytes}."
    )
    proof = "" if answer_json["proof"] is None else " {/answer/proof/claim}"
    return f"{step}{proof}"


def _append_card(parent: Element, report_json: Any) -> None:
    """Append the card: a figure in large type with a line of explanation, for each quantity."""
    answer = report_json["answer"]
    figures = append_card(
        parent,
        report_json,
        "{/answer/model} on {/answer/cluster}",
        lines=_problem_lines(answer),
        foot=_proof_line(answer["proof"]),
    )
    append_figure(
        figures,
        report_json,
        "Step",
        "{/answer/step_s:seconds}",
        "{/answer/interval_share:whole_percent} of comparable runs take"
        " {/answer/interval_s/0:seconds} to {/answer/interval_s/1:seconds}",
    )
    append_figure(
        figures,
        report_json,
        "Tokens a second",
        "{/answer/tokens_per_s:short_count}",
        "{/answer/tokens_per_s_per_device:number} on each of {/answer/devices:count} devices, MFU"
        " {/answer/mfu:percent}",
    )
    if answer["usd_per_million_tokens"] is not None:
        append_figure(
            figures,
            report_json,
            "Cost",
            "{/answer/usd_per_million_tokens:dollars}",
            "a million tokens, at the prices of the cluster's nodes",
        )
    if answer["run"] is not None:
        cost = "" if answer["run"]["usd"] is None else "and {/answer/run/usd:dollars} "
        append_figure(
            figures,
            report_json,
            "Training run",
            "{/answer/run/days:days}",
            f"{cost}for {{/answer/run/tokens:short_count}} tokens, without failures and"
            " checkpoints",
        )
    memory = append_figure(
        figures,
        report_json,
        "Memory",
        "{/answer/memory_share:whole_percent}",
        "of {/answer/capacity_bytes:bytes} on the fullest device"
        + ("" if answer["fits"] else ": it does not fit"),
    )
    append_gauge(memory, min(answer["memory_share"], 1.0))


def _problem_lines(answer_json: Any) -> tuple[str, ...]:
    """Templates of the card's lines: model size, any batch and runtime; any strategy as second."""
    parameters = "{/answer/parameters:parameters} parameters"
    batch = (
        ""
        if answer_json["sequences"] is None
        else ", {/answer/sequences:count} sequences of {/answer/sequence_tokens:count} tokens a"
        " step"
    )
    runtime = "" if answer_json["runtime"] is None else ", {/answer/runtime}"
    strategy = () if answer_json["strategy"] is None else ("{/answer/strategy}",)
    return (f"{parameters}{batch}{runtime}", *strategy)


def _proof_line(proof_json: Any) -> str:
    """Template: best of n strategies or gap to the bound, and counts by outcome; else empty."""
    if proof_json is None:
        return ""
    claim = (
        "Proven best of {/answer/proof/strategies:count} strategies"
        if proof_json["optimal"]
        else "Best found of {/answer/proof/strategies:count} strategies, at most"
        " {/answer/proof/gap:percent} above the fastest possible"
    )
    return (
        f"{claim}: {{/answer/proof/infeasible:count}} do not fit,"
        " {/answer/proof/bounded:count} are ruled out by a lower bound of their time,"
        " {/answer/proof/simulated:count} were simulated."
    )
