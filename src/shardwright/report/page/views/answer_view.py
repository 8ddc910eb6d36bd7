"""View of the answer: a card with step time, throughput, cost, memory and proof."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.markup.figure_card import append_card, append_figure
from shardwright.report.page.markup.view import View


def answer_view(document: Any) -> View:
    """The view of the strategy, its predicted step and its proof."""
    return View(
        name="answer",
        question="What is the answer?",
        reading=_reading(document["answer"]),
        chart=_append_card,
    )


def _reading(answer: Any) -> str:
    """Template of the sentence that says what was found, and how sure it is."""
    fits = (
        "The fullest device holds {/answer/reserved_bytes:bytes} of"
        " {/answer/capacity_bytes:bytes} ({/answer/memory_share:whole_percent})."
        if answer["fits"]
        else "It does not fit: the fullest device needs {/answer/reserved_bytes:bytes}, and a"
        " program can allocate {/answer/capacity_bytes:bytes}."
    )
    proof = "" if answer["proof"] is None else " {/answer/proof/claim}"
    return f"{fits}{proof}"


def _append_card(parent: Element, document: Any) -> None:
    """Append the card: a figure in large type with a line of explanation, for each quantity."""
    answer = document["answer"]
    strategy = "" if answer["strategy"] is None else ": {/answer/strategy}"
    figures = append_card(
        parent,
        document,
        "{/answer/model} ({/answer/parameters:parameters} parameters) on {/answer/cluster}"
        f"{strategy}",
    )
    append_figure(
        figures,
        document,
        "Step",
        "{/answer/step_s:seconds}",
        "{/answer/interval_share:whole_percent} of comparable runs take"
        " {/answer/interval_s/0:seconds} to {/answer/interval_s/1:seconds}",
    )
    append_figure(
        figures,
        document,
        "Throughput",
        "{/answer/tokens_per_s:count} tokens/s",
        "{/answer/tokens_per_s_per_device:number} tokens/s on each of {/answer/devices:count}"
        " devices, MFU {/answer/mfu:percent}",
    )
    if answer["usd_per_million_tokens"] is not None:
        append_figure(
            figures,
            document,
            "Cost",
            "{/answer/usd_per_million_tokens:dollars}",
            "for a million tokens, at the prices of the cluster's nodes",
        )
    if answer["run"] is not None:
        cost = "" if answer["run"]["usd"] is None else "and {/answer/run/usd:dollars} "
        append_figure(
            figures,
            document,
            "Training run",
            "{/answer/run/days:days}",
            f"{cost}for {{/answer/run/tokens:short_count}} tokens, without failures and"
            " checkpoints",
        )
    append_figure(
        figures,
        document,
        "Memory",
        "{/answer/memory_share:whole_percent}",
        "of {/answer/capacity_bytes:bytes} on the fullest device",
    )
    if answer["proof"] is not None:
        append_figure(
            figures,
            document,
            "Proof",
            "optimal" if answer["proof"]["optimal"] else "gap {/answer/proof/gap:percent}",
            "{/answer/proof/strategies:count} strategies: {/answer/proof/infeasible:count} do not"
            " fit, {/answer/proof/bounded:count} are ruled out by a lower bound of their time,"
            " {/answer/proof/simulated:count} were simulated",
        )
