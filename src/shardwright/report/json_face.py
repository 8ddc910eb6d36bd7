"""The JSON faces: stable names, sorted keys, floats to nine significant digits, and the same bytes for the same result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from shardwright.search.answer import Alternative, Answer, Goodput, Sensitivity
from shardwright.search.certificate import Certificate
from shardwright.search.recheck import Recheck
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation, Verified
from shardwright.simulator.prediction import Prediction, StageMemory
from shardwright.strategy.grid_notation import print_grid
from shardwright.strategy.plan_json import plan_to_json

SCHEMA: Final = "shardwright.plan"
SIMULATION_SCHEMA: Final = "shardwright.simulation"
VERSION: Final = 1
DIGITS: Final = 9


def to_text(document: Mapping[str, Any]) -> str:
    """The one text of a document: sorted keys, floats to `DIGITS` digits, a line break at the end."""
    return json.dumps(_stable(document), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _stable(value: Any) -> Any:
    """`value` in JSON's own types; an infinite or undefined number is null, for JSON has none."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _stable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_stable(item) for item in value]
    return value


def plan_document(answer: Answer) -> dict[str, Any]:
    """A plan file: the answer without any clock value."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "problem": request_document(answer.request) if answer.request else None,
        "plan": plan_to_json(answer.plan) if answer.plan else None,
        "strategy": print_grid(answer.grid),
        "runtime": answer.request.runtime if answer.request else None,
        "prediction": prediction_document(answer.prediction),
        "certificate": certificate_document(answer.certificate),
        "alternatives": [_alternative(a, rank=rank) for rank, a in enumerate(answer.alternatives, start=2)],
        "sensitivity": _sensitivity(answer.sensitivity) if answer.sensitivity else None,
        "goodput": _goodput(answer.goodput) if answer.goodput else None,
    }


def answer_document(answer: Answer) -> dict[str, Any]:
    """``plan --json``: the plan file and the seconds that the search took."""
    return {**plan_document(answer), "search_time_s": answer.search_time_s}


def simulation_document(simulation: Simulation) -> dict[str, Any]:
    """``simulate --json``, and what its ``-o`` writes: the prediction of one strategy, and all that asks for it again.

    ``strategy`` is a grid's text, or null where no grid says it; ``plan`` the general plan that was simulated, or null where the grid was
    lowered as it is. ``digest`` is over the question: problem, strategy and plan.
    """
    question = {
        "problem": request_document(simulation.request),
        "strategy": print_grid(simulation.grid) if simulation.grid else None,
        "plan": plan_to_json(simulation.plan) if simulation.plan else None,
    }
    return {
        **prediction_document(simulation.prediction),
        **question,
        "schema": SIMULATION_SCHEMA,
        "version": VERSION,
        "name": simulation.name,
        "digest": question_digest(question),
        "runtime": simulation.request.runtime,
        "classes": list(simulation.classes),
        "notes": list(simulation.notes),
    }


def question_digest(question: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of a question's one text."""
    return sha256(to_text(question).encode()).hexdigest()


def verified_document(found: Verified) -> dict[str, Any]:
    """``check --json`` of a stored simulation that holds (one that does not is an error)."""
    return {"holds": True, "devices": found.devices, "actions": found.actions, "drift": found.drift, "full": found.full}


def prediction_document(prediction: Prediction) -> dict[str, Any]:
    """Time and memory of one step."""
    return {
        "step_time_s": prediction.step_time_s,
        "interval_s": list(prediction.interval_s),
        "tokens_per_s": prediction.tokens_per_s,
        "tokens_per_s_per_device": prediction.tokens_per_s_per_device,
        "mfu_causal": prediction.mfu_causal,
        "mfu_full": prediction.mfu_full,
        "peak_memory_bytes": {"allocated": prediction.allocated_bytes, "reserved": prediction.reserved_bytes},
        "capacity_bytes": prediction.capacity_bytes,
        "stages": [_stage(stage) for stage in prediction.stages],
        "breakdown_s": dict(prediction.breakdown_s),
        "doubts": {d.name: d.share for d in prediction.doubts},
        "sources": [
            {"quantity": s.quantity, "value": s.value, "evidence": s.origin.evidence.value, "reference": s.origin.reference}
            for s in prediction.sources
        ],
    }


def _stage(stage: StageMemory) -> dict[str, Any]:
    return {
        "rank": stage.rank,
        "devices": stage.devices,
        "layers": stage.layers,
        "memory_bytes": dict(stage.items),
        "allocated_bytes": stage.allocated,
        "reserved_bytes": stage.reserved,
        **({"capacity_bytes": stage.capacity} if stage.capacity else {}),
    }


def certificate_document(certificate: Certificate) -> dict[str, Any]:
    """Every member of the space, accounted for."""
    return {
        "space": certificate.space,
        "digest": certificate.digest,
        "enumerated": certificate.enumerated,
        "illegal": certificate.illegal,
        "duplicates": certificate.duplicates,
        "infeasible": certificate.infeasible,
        "infeasible_by_reason": dict(certificate.infeasible_by_reason),
        "bounded_b0": certificate.bounded_b0,
        "bounded_b1": certificate.bounded_b1,
        "simulated": certificate.simulated,
        "best_s": certificate.best_s,
        "lower_bound_s": certificate.lower_bound_s,
        "gap": certificate.gap,
        "optimal": certificate.optimal,
        "universal_gap": certificate.universal_gap,
    }


def request_document(request: Request) -> dict[str, Any]:
    """What was asked, as a plan file keeps it."""
    return {
        "model": request.model,
        "cluster": request.cluster,
        "seq_len": request.seq_len,
        "global_batch": request.global_batch,
        "encoder_len": request.encoder_len,
        "image_tokens": request.image_tokens,
        "runtime": request.runtime,
        "precision": request.precision,
        "space": request.space,
        "pins": {axis: list(values) for axis, values in request.pins},
        "excludes": {axis: list(values) for axis, values in request.excludes},
        "max_devices": request.max_devices,
        "reserve_bytes": request.reserve_bytes,
        "reserve_fraction": request.reserve_fraction,
        "top": request.top,
        "profile": request.profile or None,
    }


def recheck_document(found: Recheck) -> dict[str, Any]:
    """``check --json`` of a plan that holds (one that does not is an error)."""
    return {
        "holds": True,
        "enumerated": found.enumerated,
        "sampled": found.sampled,
        "contenders": found.contenders,
        "drift": found.drift,
    }


def _alternative(alternative: Alternative, *, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "strategy": print_grid(alternative.grid),
        "step_time_s": alternative.step_time_s,
        "allocated_bytes": alternative.allocated_bytes,
        "loses_s": dict(alternative.loses),
        "indistinguishable": alternative.indistinguishable,
    }


def _sensitivity(sensitivity: Sensitivity) -> dict[str, Any]:
    return {
        "change": sensitivity.change,
        "same_plan_s": sensitivity.same_plan_s,
        "best_s": sensitivity.best_s,
        "best_strategy": print_grid(sensitivity.best_grid),
    }


def _goodput(goodput: Goodput) -> dict[str, Any]:
    return {
        "failures_per_day": goodput.failures_per_day,
        "checkpoint_interval_s": goodput.checkpoint_interval_s,
        "goodput": goodput.goodput,
        "assumptions": list(goodput.assumptions),
    }
