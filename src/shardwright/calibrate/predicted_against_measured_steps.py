"""Check of a profile: training steps of small models, predicted and measured on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from shardwright.calibrate.calibration_settings_and_check_rows import CheckRow
from shardwright.calibrate.time_decoder_step import MeasuredStep, measure_step
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.hardware.profile.apply_profile import profiled_cluster
from shardwright.hardware.profile.measured_rates import Profile
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.parallelism_grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A training step to check: a Hugging Face configuration, batch size and sequence length."""

    name: str
    config: Mapping[str, Any]
    batch: int
    length: int


def _llama_config(
    *, hidden: int, inner: int, heads: int, groups: int, layers: int, vocab: int, experts: int = 0
) -> dict[str, Any]:
    """Hugging Face configuration of a small Llama, or of a Mixtral where `experts` is not 0."""
    config: dict[str, Any] = {
        "architectures": ["MixtralForCausalLM" if experts else "LlamaForCausalLM"],
        "model_type": "mixtral" if experts else "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
    }
    return config | ({"num_local_experts": experts, "num_experts_per_tok": 2} if experts else {})


_DENSE: Final = {
    "cpu": _llama_config(hidden=512, inner=1536, heads=8, groups=4, layers=4, vocab=2048),
    "cuda": _llama_config(hidden=4096, inner=14336, heads=32, groups=8, layers=4, vocab=32000),
    "tiny": _llama_config(hidden=64, inner=128, heads=4, groups=2, layers=1, vocab=128),
}
_MOE: Final = {
    "cpu": _llama_config(hidden=512, inner=768, heads=8, groups=4, layers=4, vocab=2048, experts=4),
    "cuda": _llama_config(
        hidden=2048, inner=4096, heads=16, groups=8, layers=4, vocab=32000, experts=8
    ),
    "tiny": _llama_config(hidden=64, inner=64, heads=4, groups=2, layers=1, vocab=128, experts=4),
}
_TOKENS: Final = {"cpu": (2, 512), "cuda": (2, 4096), "tiny": (2, 32)}


def step_cases(device: str, *, tiny: bool = False) -> tuple[StepCase, ...]:
    """Training steps of a dense and a mixture-of-experts decoder that fit one device."""
    size = "tiny" if tiny else device
    batch, length = _TOKENS[size]
    models = (("dense", _DENSE[size]), ("mixture of experts", _MOE[size]))
    return tuple(
        StepCase(name=name, config=config, batch=batch, length=length) for name, config in models
    )


def check_machine(
    profile: Profile,
    *,
    device: str,
    repetitions: int = 5,
    warm_up: int = 2,
    tiny: bool = False,
    progress: Progress | None = None,
) -> tuple[CheckRow, ...]:
    """Predict and measure training steps on the machine of `profile`.

    The number of threads is that of the profile's measurement.

    Args:
        device: ``cpu``, ``cuda``, or empty: CUDA where there is one.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = check_dtype(profile)
    before = torch.get_num_threads()
    if profile.method is not None and profile.method.threads:
        torch.set_num_threads(profile.method.threads)
    cases = step_cases(device, tiny=tiny)
    checks: list[CheckRow] = []
    try:
        for case in cases:
            if progress is not None:
                progress(f"training step, {case.name}", len(checks), len(cases))
            measured = measure_step(
                case.config,
                device=device,
                dtype=dtype,
                batch=case.batch,
                length=case.length,
                repetitions=repetitions,
                warm_up=warm_up,
            )
            checks.append(_check_row(case.name, predict_step(case, profile), measured))
    finally:
        torch.set_num_threads(before)
    return tuple(checks)


def _check_row(name: str, prediction: Prediction, measured: MeasuredStep) -> CheckRow:
    """Row of a check: predicted and measured step seconds and peak bytes of one case."""
    low, high = prediction.interval_s
    return CheckRow(
        name,
        prediction.step_time_s,
        low,
        high,
        measured.seconds,
        peak_bytes(prediction),
        measured.peak_bytes,
    )


def peak_bytes(prediction: Prediction) -> int:
    """Peak bytes predicted for a step, counting the larger of activations and gradients, not both.

    A prediction counts gradients that are kept. In this step there are none at the loss, where
    activations and logits are largest; after the backward pass those are freed.
    """
    (stage,) = prediction.stages
    parts = dict(stage.items)
    flow = parts["activations"] + parts["logits"] + parts["temporary"]
    return stage.allocated - flow - parts["gradients"] + max(flow, parts["gradients"])


def check_dtype(profile: Profile) -> Dtype:
    """Number format of the check: the 16-bit one that the profile has GEMMs in, else fp32."""
    measured = {gemm.dtype for gemm in profile.gemm}
    return next((d for d in (Dtype.BF16, Dtype.FP16) if d in measured), Dtype.FP32)


def predict_step(case: StepCase, profile: Profile) -> Prediction:
    """Predict a step in plain torch: eager kernels, no sharding, gradients in parameter dtype."""
    dtype = check_dtype(profile)
    accelerator = find_accelerator(profile.accelerator)
    name = accelerator.name if accelerator else profile.accelerator
    cluster = profiled_cluster(f"{name}:1", profile)
    model = model_from_config(case.config, name=case.name, source="written here")
    job = job_from_flags(seq_len=case.length, global_batch=case.batch, precision=dtype.value)
    problem = Problem(model=model, cluster=cluster, job=job, runtime=_eager_runtime(dtype))
    return predict(problem, Grid(microbatch=case.batch))


def _eager_runtime(dtype: Dtype) -> Runtime:
    """Runtime of torchtitan's eager kernels without sharding and copies, all in one dtype."""
    return replace(
        load_runtime("torchtitan-0.2 kernels=eager"),
        name=f"torch-eager-{dtype.value}",
        zero_stages=(0,),
        gathers_from_master=False,
        gradient_dtype=dtype,
    )
