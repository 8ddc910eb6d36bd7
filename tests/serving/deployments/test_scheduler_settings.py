"""A rank's scheduler is told the engine's numbers once."""

from __future__ import annotations

from dataclasses import replace

from shardwright.runtime.serving_engines.engine_registry import load_engine
from shardwright.serving.deployments.deployment_notation import parse_worker
from shardwright.serving.deployments.engine_settings_on_worker import problem_on_worker
from shardwright.serving.deployments.scheduler_settings import scheduler_settings
from tests.serving.problems import problem


def test_ranks_share_a_budget_once() -> None:
    engine = replace(load_engine("sglang-0.5.9"), token_budget=16384, max_sequences=2048)
    asked = problem("deepseek-v3", "h200-sxm:8", engine=engine)
    for words, ranks in (("tp8", 1), ("dpa8 ep8", 8), ("tp2 dpa4 ep8", 4)):
        worker = parse_worker(words)
        scheduler = scheduler_settings(problem_on_worker(asked, worker).engine, worker, blocks=1000)
        assert (scheduler.token_budget, scheduler.max_sequences) == (16384 // ranks, 2048 // ranks)
    worker = parse_worker("dpa8 ep8 seqs16")
    assert (
        scheduler_settings(
            problem_on_worker(asked, worker).engine, worker, blocks=1000
        ).max_sequences
        == 16
    )
