"""The step table: monotone, no faster than the memory it reads, and what it leaves to contexts."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.arrays import FloatArray
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import Precision
from shardwright.serving.deployments.deployment_notation import parse_worker
from shardwright.serving.deployments.worker_pools import Worker
from shardwright.serving.step_times.build_step_table import step_table
from shardwright.serving.step_times.iteration_seconds import tabulate_steps
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.step_times.worker_memory import weight_bytes
from tests.serving.problems import EIGHT_BITS, ENGINE, problem
from tests.serving.random_runs import scheduler

CASES = (
    ("llama-3.1-70b", "h100-sxm:8", "tp8"),
    ("llama-3.1-70b", "h200-sxm:8", "tp2 pp2"),
    ("deepseek-v3", "h200-sxm:8", "tp8"),
    ("deepseek-v3", "h200-sxm:16", "dpa16 ep16"),
    ("deepseek-v3", "b200-sxm:8", "tp2 dpa4 ep8 mtp1"),
    ("gpt-oss-120b", "b200-sxm:8", "tp4 ep2"),
    ("qwen3-next-80b-a3b", "h100-sxm:8", "tp4"),
)


@pytest.fixture(scope="module", params=CASES, ids=[" ".join(case) for case in CASES])
def table(request: pytest.FixtureRequest) -> tuple[StepTable, Worker]:
    model, cluster, words = request.param
    worker = parse_worker(words)
    return step_table(problem(model, cluster), worker), worker


def rises(values: FloatArray) -> bool:
    return bool((np.diff(values) >= -1e-15).all())


def test_nothing_falls_with_tokens_requests_or_contexts(table: tuple[StepTable, Worker]) -> None:
    made, _ = table
    for column in (
        made.replayed,
        made.launched,
        made.replaying,
        made.launching,
        made.head,
        made.decode_start,
        made.prompt_seconds,
    ):
        assert rises(column)
    assert (made.decode_slope >= 0).all()
    assert (made.window_slope >= 0).all()
    assert (made.launched >= made.replayed - 1e-15).all()


def test_captured_sizes_are_points_of_the_table(table: tuple[StepTable, Worker]) -> None:
    made, _ = table
    assert set(made.captured.tolist()) <= set(made.tokens.tolist())


@pytest.mark.parametrize(
    ("model", "cluster", "words"),
    [case for case in CASES if "dense" not in case and "deepseek" not in case[0]],
)
def test_an_iteration_reads_every_weight_that_all_tokens_use(
    model: str, cluster: str, words: str
) -> None:
    """With as many tokens as reach every expert, an iteration is no faster than its weights at the
    memory's peak rate."""
    asked, worker = problem(model, cluster), parse_worker(words)
    made = step_table(asked, worker)
    embedding = asked.model.vocab * asked.model.hidden * 2 / (worker.tp * worker.pp)
    read = (weight_bytes(asked, worker) - embedding) * worker.pp
    assert (
        made.replayed[-1] + made.head[-1] >= read / asked.cluster.node.accelerator.memory_bandwidth
    )


def test_one_token_reads_the_experts_that_it_visits() -> None:
    """gpt-oss: 4 of 128 experts a token. An iteration of one token is near what its share of the
    weights takes, far below all of them."""
    asked = problem("gpt-oss-120b", "b200-sxm:1")
    made = step_table(asked, parse_worker("tp1"))
    everything = (
        weight_bytes(asked, parse_worker("tp1")) / asked.cluster.node.accelerator.memory_bandwidth
    )
    assert made.replayed[0] < everything / 3
    assert made.replayed[-1] > everything


def test_fewer_bits_are_read_faster() -> None:
    wide = step_table(problem("llama-3.1-70b", "h100-sxm:8"), parse_worker("tp8"))
    narrow = step_table(
        problem(
            "llama-3.1-70b", "h100-sxm:8", precision=Precision(attention=EIGHT_BITS, mlp=EIGHT_BITS)
        ),
        parse_worker("tp8"),
    )
    assert (narrow.replayed < wide.replayed).all()


def test_latent_attention_reads_a_token_once_for_all_heads() -> None:
    """On tp8 each device reads the whole latent: 576 elements of 61 layers, 70,272 bytes a token of
    context."""
    asked = problem("deepseek-v3", "h200-sxm:8")
    made, device = step_table(asked, parse_worker("tp8")), asked.cluster.node.accelerator
    least = 61 * 576 * 2 / device.memory_bandwidth
    assert least <= made.decode_slope[-1] <= 2 * least


def test_windows_are_apart() -> None:
    made = step_table(problem("gpt-oss-120b", "b200-sxm:1"), parse_worker("tp1"))
    assert made.windows.tolist() == [128]
    assert np.allclose(made.window_slope[0], made.decode_slope)  # 18 layers each


def test_a_prompt_takes_more_than_its_share_when_longer() -> None:
    made = step_table(problem("llama-3.1-70b", "h100-sxm:8"), parse_worker("tp8"))
    rate = made.prompt_seconds[1:] / made.prompt_tokens[1:]
    assert rate[-1] > 4 * rate[np.searchsorted(made.prompt_tokens[1:], 8192)]


def test_a_batch_that_is_not_padded_replays_at_captured_sizes_alone() -> None:
    asked, worker = (
        problem("llama-3.1-70b", "h100-sxm:8", engine=replace(ENGINE, pads=False)),
        parse_worker("tp8"),
    )
    made = step_table(asked, worker)
    columns = tabulate_steps(made, scheduler(token_budget=8192, max_sequences=256), longest=2048)
    for tokens in range(1, 257):
        kept = (
            columns.replayed[tokens] < columns.launched[tokens]
            and columns.replaying[tokens] < columns.launching[tokens]
        )
        assert kept == (tokens in ENGINE.captured)
