"""Number of answer tokens that an iteration gives a request, with accepted draft tokens."""

from __future__ import annotations

from shardwright.arrays import FloatArray
from shardwright.kernel_compilation import allocation_free
from shardwright.serving.policy.scheduler_state import (
    DECODES,
    DRAFT_TOKENS,
    ENTRY,
    ITERATIONS,
    SEED,
    SchedulerState,
)

# Columns of `chances`.
ACCEPTANCE, SAMPLES, MEAN_TOKENS, NUM_CHANCES = range(4)

_MODULUS = 2147483647
_FACTOR = 48271


@allocation_free
def tokens_given(
    state: SchedulerState, acceptance: FloatArray, rank: int, slot: int, entry: int
) -> int:
    """Answer tokens that an entry's iteration gives: one, plus the draft tokens accepted at random.

    In the mean: floor(j m) - floor((j - 1) m) in a request's j-th iteration, with mean m. Sampled:
    a random number from the seed, the request and j alone, so that no order of events changes it.
    """
    draft_tokens = state.settings[DRAFT_TOKENS]
    if draft_tokens == 0 or not state.batch[rank, slot, entry, DECODES]:
        return 1
    request = state.batch[rank, slot, entry, ENTRY]
    state.requests[request, ITERATIONS] += 1
    iteration = state.requests[request, ITERATIONS]
    if acceptance[SAMPLES] == 0.0:
        mean = acceptance[MEAN_TOKENS]
        return int(iteration * mean + 1e-9) - int((iteration - 1) * mean + 1e-9)
    # A multiplicative generator (Park and Miller), seeded by the seed, the request and the
    # iteration.
    random_number = (
        state.settings[SEED] * 7919 + (request + 1) * 104729 + iteration * 15485863
    ) % (_MODULUS - 1) + 1
    for _ in range(3):
        random_number = random_number * _FACTOR % _MODULUS
    accepted = 0
    while accepted < draft_tokens:
        random_number = random_number * _FACTOR % _MODULUS
        if random_number >= acceptance[ACCEPTANCE] * _MODULUS:
            break
        accepted += 1
    return 1 + accepted
