"""How many tokens an iteration gives a request whose guesses are checked in it."""

from __future__ import annotations

from shardwright.arrays import FloatArray
from shardwright.compiled import allocation_free
from shardwright.serving.policy.scheduler_state import (
    DECODES,
    ENTRY,
    GUESSES,
    ITERATIONS,
    SEED,
    State,
)

# Columns of `chances`.
ACCEPTANCE, SAMPLES, MEAN_TOKENS, NUM_CHANCES = range(4)

_MODULUS = 2147483647
_FACTOR = 48271


@allocation_free
def tokens_given(state: State, chances: FloatArray, rank: int, slot: int, entry: int) -> int:
    """Tokens that an entry's iteration gives: one, and those of its guesses that are right and have
    none before them that is wrong.

    In the mean: floor(j m) - floor((j - 1) m) in a request's j-th iteration, m being the mean.
    Sampled: a number of its own, from the seed, the request and j alone, so that no order of events
    changes it.
    """
    guesses = state.settings[GUESSES]
    if guesses == 0 or not state.batch[rank, slot, entry, DECODES]:
        return 1
    request = state.batch[rank, slot, entry, ENTRY]
    state.requests[request, ITERATIONS] += 1
    turn = state.requests[request, ITERATIONS]
    if chances[SAMPLES] == 0.0:
        mean = chances[MEAN_TOKENS]
        return int(turn * mean + 1e-9) - int((turn - 1) * mean + 1e-9)
    # A multiplicative generator (Park and Miller) whose start mixes what names the draw.
    number = (state.settings[SEED] * 7919 + (request + 1) * 104729 + turn * 15485863) % (
        _MODULUS - 1
    ) + 1
    for _ in range(3):
        number = number * _FACTOR % _MODULUS
    right = 0
    while right < guesses:
        number = number * _FACTOR % _MODULUS
        if number >= chances[ACCEPTANCE] * _MODULUS:
            break
        right += 1
    return 1 + right
