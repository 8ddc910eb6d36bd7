"""One training step on one device in one process: this package's interpreter, and the same decoder
as plain PyTorch with SDPA and AdamW."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch.nn import functional

from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.native.decoder_stage_as_torch_modules import NativeStage
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import create_device_state, prepare_training
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.execute.training.training_loop import step_task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model

SIZES = {
    "17M": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "vocab_size": 8192,
    },
    "100M": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 10240,
    },
}
SAMPLES, TOKENS = 4, 256
RULE = AdamW()
Step = Callable[[], float]


def decoder(name: str) -> Model:
    """A Llama of so many parameters."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        **SIZES[name],
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": TOKENS,
    }
    return model_from_config(
        {**config, "num_key_value_heads": SIZES[name]["num_attention_heads"]}, name=name
    )


def steps_of(name: str) -> tuple[Step, Step]:
    """(a step of the interpreter, a step of plain PyTorch), float32; each returns its loss. Both
    begin with the same parameters."""
    model = decoder(name)
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=TOKENS),), global_batch=SAMPLES)
    tokens = torch.randint(
        0, model.vocab, (SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(0)
    )
    batch = {"text": tokens[:, :-1], "labels": tokens[:, 1:]}
    plan, source = single_device_plan(model, job), seeded(model, seed=0, dtype=torch.float32)
    known = prepare_training(model, job, plan, rule=RULE, dtype=torch.float32)
    own = create_device_state(0, known, source=source)

    def ours() -> float:
        return run_in_process({0: step_task(own, known, batch=batch)})[0].loss

    work, _ = prepare_step(model, job, plan)
    module = NativeStage(work.stages[0][0], model=model, settings=model.settings).to_empty(
        device="cpu"
    )
    with torch.no_grad():
        for parameter, key, lying in module.parameter_keys():
            module.get_parameter(parameter).copy_(lying.to_module(source(key)))
    rule = {
        "lr": RULE.rate,
        "betas": RULE.betas,
        "eps": RULE.eps,
        "weight_decay": RULE.decay,
        "fused": True,
    }
    optimizer = torch.optim.AdamW(module.parameters(), **rule)

    def plain() -> float:
        loss = functional.cross_entropy(
            module(batch["text"]).flatten(0, 1), batch["labels"].flatten()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), RULE.clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return ours, plain


def seconds(step: Step) -> float:
    """Of one step."""
    start = perf_counter()
    step()
    return perf_counter() - start


class Step1:
    """A step of 4 x 256 tokens. The bar is 1.15 times plain PyTorch's."""

    params = tuple(SIZES)
    param_names = ("model",)
    timeout = 600

    def setup(self, name: str) -> None:
        """Two steps of each: what is made once is made."""
        self.ours, self.plain = steps_of(name)
        for _ in range(2):
            self.ours(), self.plain()

    def track_ratio(self, name: str) -> float:
        """Median of seven pairs, one of each at a time."""
        return median(seconds(self.ours) / seconds(self.plain) for _ in range(7))
