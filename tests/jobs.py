"""Jobs for tests."""

from __future__ import annotations

from shardwright.job.training_job import SequenceLength, TrainingJob


def training_job(*, seq_len: int, global_batch: int) -> TrainingJob:
    """The everyday job: one text sequence, AdamW in fp32 over bf16."""
    return TrainingJob(
        sequences=(SequenceLength(name="text", tokens=seq_len),), global_batch=global_batch
    )
