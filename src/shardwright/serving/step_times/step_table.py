"""Step table: seconds of a worker's iteration as columns, for loops over millions of iterations."""

from __future__ import annotations

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """Seconds of one iteration of a worker, as columns by tokens, sequences and context.

    With data parallel attention, of one of its ranks.

    An iteration has D requests that decode, with `draft_tokens` + 1 tokens each, and parts of
    prompts: part i has q_i tokens behind p_i that are cached already. Its tokens are T =
    (draft_tokens + 1) D + sum q_i; S requests of it get a token (all that decode, and those whose
    prompt ends).

        device = base(T) + head(S) + start(D) + slope(D) K
            + sum over windows w of window_slope_w(D) K_w + sum_i (A(p_i + q_i) - A(p_i))
        seconds = max(device, host + handing(T)) + answer    where the host is asynchronous,
            else device + host + answer

    K is the sum of all contexts of the D requests (cached tokens that their new token sees), K_w
    that of min(context, w). All are linear between the points of their columns, and beyond the last
    as between the last two. ``base`` is `replayed`, at T padded to the next captured size, where
    graphs replay the iteration: those without prompts up to the largest captured size (of just a
    captured size, unless it `pads`), and with them too if `piecewise`; else `launched` at T.
    ``handing`` is the host's time to hand that work to its device, `replaying` or `launching`; one
    thread schedules and hands out tokens, one after the other.

    Args:
        tokens: (t,) rising.
        replayed, launched: (t,) seconds that do not depend on contexts: matrix products, norms,
            experts, all-reduces; at least the host's seconds.
        replaying, launching: (t,) seconds of the host for those.
        captured: (g,) rising sizes in tokens; empty = none.
        piecewise, pads: see `Engine`.
        sequences: (s,) rising.
        head: (s,) logits and sampling.
        decode_start, decode_slope: (s,) attention, seconds and seconds a token of context.
        windows: (w,) tokens.
        window_slope: (w, s).
        prompt_tokens: (p,) rising from 0.
        prompt_seconds: (p,) A, attention of a whole prompt.
        host_s, host_sequence_s: host's seconds of an iteration, and of each request in it; times
            the stages where every stage's host does its own work.
        answer_s: seconds after each iteration, not hidden.
        asynchronous: see above.
        draft_tokens: see `Worker`.
        stages: pipeline stages; an iteration goes through all of them in its seconds, and the next
            one of the same stage may begin after a `stages`-th of it.
    """

    tokens: IntArray
    replayed: FloatArray
    launched: FloatArray
    replaying: FloatArray
    launching: FloatArray
    captured: IntArray
    piecewise: bool
    sequences: IntArray
    head: FloatArray
    decode_start: FloatArray
    decode_slope: FloatArray
    windows: IntArray
    window_slope: FloatArray
    prompt_tokens: IntArray
    prompt_seconds: FloatArray
    host_s: float
    host_sequence_s: float
    answer_s: float
    asynchronous: bool
    draft_tokens: int = 0
    stages: int = 1
    pads: bool = True
