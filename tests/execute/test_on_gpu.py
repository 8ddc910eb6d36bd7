"""What runs on a processor runs on a GPU and finds the same: every family, every small plan,
PyTorch's engine, the verbs. Needs a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)
pytest.importorskip("safetensors")

from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.numerics.attention.fused_calls_covering_causal_mask import kernel_calls
from shardwright.execute.numerics.attention.fused_torch_kernels import CudaEfficient, CudaFlash
from shardwright.execute.numerics.attention.merge_fused_attention_calls import (
    key_block_gradients,
    merge_key_block,
)
from shardwright.execute.numerics.base.run_precision import RunPrecision, uniform_precision
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.execute.proof.prove_plan import random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.execute.transport.communication_requests import GroupExchange, Reduce, Task
from shardwright.execute.transport.run_side_tasks_on_stream_or_thread import StreamSideTasks
from shardwright.job.training_job import TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.program.layout.tensor_layout import Indices, count
from tests.execute.published_configs import sequences_of
from tests.execute.published_families import ALL
from tests.execute.small_plans import PLANS, RULE, Small
from tests.execute.trained import train

STEPS, SAMPLES, TOKENS = 2, 2, 8
CLOSE = 1e-9
"""Of losses in float64: sums are in another order."""
HALVES = RunPrecision(
    compute=torch.bfloat16,
    parameter=torch.bfloat16,
    gradient=torch.float32,
    wire=torch.float32,
    states=(torch.float32, torch.float32),
    master=torch.float32,
)
COARSE = 2e-2
"""Of losses in bfloat16."""


def losses(model: Model, job: TrainingJob, *, on: str, precision: RunPrecision) -> list[float]:
    known = prepare_training(
        model, job, single_device_plan(model, job), rule=RULE, precision=precision, on=on
    )
    members = {0: create_device_state(0, known, source=seeded(model, seed=0))}
    batches = (random_batch(model, job, seed=step) for step in range(STEPS))
    return [one.loss for one in train(members, known, batches)]


def both(name: str, precision: RunPrecision) -> tuple[list[float], list[float]]:
    model = model_from_config(ALL[name], name=name)
    tokens = max(
        TOKENS, 4 * sum(s.tokens for s in sequences_of(model, tokens=TOKENS) if s.name == "image")
    )
    job = TrainingJob(sequences=sequences_of(model, tokens=tokens), global_batch=SAMPLES)
    here, there = (losses(model, job, on=on, precision=precision) for on in ("cpu", "cuda"))
    return here, there


@pytest.mark.parametrize("name", ALL)
def test_every_family_computes_the_same(name: str) -> None:
    here, there = both(name, uniform_precision(torch.float64))
    assert there == pytest.approx(here, rel=CLOSE)


@pytest.mark.parametrize("name", ALL)
def test_every_family_trains_in_halves(name: str) -> None:
    here, there = both(name, HALVES)
    assert there == pytest.approx(here, rel=COARSE)


@pytest.mark.parametrize("name", PLANS)
def test_every_small_plan_finds_the_same(name: str) -> None:
    """All devices of the plan on one GPU: what operators, cuts and sums make there."""
    small = PLANS[name]
    here, there = (_trained(small, replace(small.known(), on=on)) for on in ("cpu", "cuda"))
    assert there == pytest.approx(here, rel=CLOSE)


def _trained(small: Small, known: PreparedTraining) -> list[float]:
    members = small.members(known)
    found = train(members, known, (small.batches(step) for step in range(STEPS)))
    return [x for one in found for x in (one.loss, one.norm)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("kernel", [CudaFlash(), CudaEfficient()], ids=["flash", "efficient"])
@pytest.mark.parametrize(("queries", "width"), [(64, 64), (70, 40), (129, 128)])
def test_fused_kernels_compute_attention(
    kernel: Any, heads: int, kv_heads: int, queries: int, width: int, causal: bool
) -> None:
    """Against autograd through plain attention in float64."""
    dtype, near = (
        (torch.float32, 1e-4) if isinstance(kernel, CudaEfficient) else (torch.bfloat16, 3e-2)
    )
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, queries, count, width) for count in (heads, kv_heads, kv_heads, heads)]
    query, key, value, grad = (
        torch.randn(s, generator=generator).to("cuda", dtype).transpose(1, 2) for s in shapes
    )
    assert kernel.fits((query, key, value))
    scale = 0.3
    out, normal = kernel.forward((query, key, value), causal=causal, scale=scale)
    found = kernel.backward(grad, (query, key, value), out, normal, causal=causal, scale=scale)
    exact = [one.double().requires_grad_() for one in (query, key, value)]
    repeated = [one.repeat_interleave(heads // kv_heads, 1) for one in exact[1:]]
    scores = scale * exact[0] @ repeated[0].mT
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    whole = scores.softmax(-1) @ repeated[1]
    whole.backward(grad.double())
    torch.testing.assert_close(normal.double(), scores.logsumexp(-1), rtol=near, atol=near)
    for own, other in zip((out, *found), (whole, *(one.grad for one in exact)), strict=True):
        assert (own.double() - other).norm() < near * other.norm()


def test_a_task_beside_reads_what_was_asked_before_and_who_ends_it_reads_what_it_made() -> None:
    on, long = torch.device("cuda", torch.cuda.current_device()), 50_000_000
    asides = StreamSideTasks(on)

    def task(tensor: torch.Tensor) -> Task[torch.Tensor]:
        return (yield Reduce(group=(0, 1), tensor=tensor, key="k")) + 1

    def answers(request: Reduce | GroupExchange) -> torch.Tensor:
        assert isinstance(request, Reduce)
        torch.cuda._sleep(long)
        return 2 * request.tensor

    for _ in range(4):
        given = torch.zeros(1 << 20, device=on)
        torch.cuda._sleep(long)
        given += 1
        beside = asides.begin(task(given), answers)
        del given
        other = torch.full((1 << 20,), 100.0, device=on)
        assert bool((asides.end(beside) + other == 103).all())
    asides.close()


@pytest.mark.parametrize("kernel", [CudaFlash(), CudaEfficient()], ids=["flash", "efficient"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_calls_of_a_fused_kernel_join(kernel: Any, kv_heads: int) -> None:
    """Queries of two runs against blocks of keys one after another: outputs and gradients of all
    keys at once, in float64."""
    joins(kernel, kv_heads, on="cuda")


def joins(kernel: Any, kv_heads: int, *, on: str) -> None:
    dtype, near = (torch.bfloat16, 3e-2) if isinstance(kernel, CudaFlash) else (torch.float32, 1e-4)
    queries: Indices = ((0, 40), (120, 160))
    blocks: tuple[Indices, ...] = (queries, ((40, 75), (90, 120)), ((75, 90),))
    generator, scale = torch.Generator().manual_seed(0), 0.3
    shapes = [(2, 80, 4, 64), *[(2, 160, kv_heads, 64)] * 2, (2, 80, 4, 64)]
    query, key, value, grad = (
        torch.randn(s, generator=generator).to(on, dtype).transpose(1, 2) for s in shapes
    )
    order, made, listed, first = [], None, [], 0
    for block in blocks:
        rows = count(block)
        heads = query, key[:, :, first : first + rows], value[:, :, first : first + rows]
        listed.append((heads, kernel_calls(queries, block, causal=True)))
        made = merge_key_block(kernel, heads, listed[-1][1], made, scale=scale)
        order.append(index_tensor(block, like=query))
        first += rows
    assert made is not None
    made = made[0].to(dtype), made[1]
    back = [
        key_block_gradients(kernel, heads, own, made, grad, scale=scale) for heads, own in listed
    ]
    found = [
        sum(one[0] for one in back),
        *(torch.cat([one[i] for one in back], dim=2) for i in (1, 2)),
    ]
    exact = [one.double().requires_grad_() for one in (query, key, value)]
    repeated = [one.repeat_interleave(4 // kv_heads, 1) for one in exact[1:]]
    scores = scale * exact[0] @ repeated[0].mT
    scores = scores.masked_fill(
        index_tensor(queries, like=query).unsqueeze(-1) < torch.cat(order), -torch.inf
    )
    whole = scores.softmax(-1) @ repeated[1]
    whole.backward(grad.double())
    torch.testing.assert_close(made[1].double(), scores.logsumexp(-1), rtol=near, atol=near)
    for own, other in zip((made[0], *found), (whole, *(one.grad for one in exact)), strict=True):
        assert (own.double() - other).norm() < near * other.norm()


@pytest.mark.parametrize("backend", ["shardwright", "torch-native"])
def test_a_run_trains_saves_traces_and_goes_on(tmp_path: Path, backend: str) -> None:
    """As a user runs it, over NCCL; the second half goes on from the first's checkpoint."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
    }
    config |= {
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / "model.json").write_text(json.dumps(config))
    plan, tokens, kept, trace = (
        str(tmp_path / name) for name in ("plan.json", "tokens.npy", "kept", "trace.json")
    )
    np.save(tokens, np.random.default_rng(0).integers(0, 512, 128 * 40 + 1).astype(np.int32))
    words = [
        "simulate",
        str(tmp_path / "model.json"),
        "h100-sxm:1",
        "--seq-len",
        "128",
        "--global-batch",
        "4",
    ]
    said(*words, "--strategy", "mbs2", "--runtime", "shardwright", "-o", plan)
    asked = ("run", plan, "--data", tokens, "--backend", backend)
    first = said(*asked, "--steps", "2", "--on", "cuda", "--checkpoints", kept, "--trace", trace)
    second = said(*asked, "--steps", "4", "--on", "cuda", "--checkpoints", kept)
    whole = said(*asked, "--steps", "4", "--on", "cpu")
    steps = [[s["loss"] for s in one["steps"]] for one in (first, second, whole)]
    assert steps[0] + steps[1] == pytest.approx(steps[2], rel=COARSE)
    assert json.loads(Path(trace).read_text())["traceEvents"]
    assert all(m["measured"] > 0 for m in first["memory"])


def said(*words: str) -> dict[str, Any]:
    """What a verb prints as JSON."""
    done = subprocess.run(
        (sys.executable, "-m", "shardwright", *words, "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
