"""Bounds of all frames at once, from work alone: which frames are worth their labels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.search.joint.chain import Chain
from shardwright.search.joint.frames import Framed

FloatArray = npt.NDArray[np.float64]


def frame_bounds(framed: Framed, chain: Chain) -> FloatArray:
    """(frames,) seconds before jitter that no member of a frame is below.

    The busiest of p ranks computes for m W / p, W = one microbatch through all blocks. One chunk a rank: the cut that makes P + m w the
    same on all ranks (P the ranks before, w the rank's own time) ends after W / (1 - (1 - 1/m)^p); and from its first backward on a rank
    has all others left: W + ((m - 1) B + max(m - p, 0) F) / p. With different splits each block takes the fastest.
    """
    counts = chain.counts.sum(axis=0).astype(np.float64)
    row = framed.prepared.layer_row
    forward, backward = framed.costs.forward[:, row], framed.costs.backward[:, row]
    whole, back = counts @ (forward + backward), counts @ backward
    result = np.empty(len(framed.frames))
    lone = np.array([len(f.outers) == 1 for f in framed.frames])
    for place in np.flatnonzero(~lone):
        frame = framed.frames[place]
        rows = list(frame.outers)
        w = float(counts @ (forward[:, rows] + backward[:, rows]).min(axis=1))
        result[place] = _bound(np.array([w]), np.array([counts @ backward[:, rows].min(axis=1)]), frame.ranks, frame.microbatches, 1)[0]
    some = np.flatnonzero(lone)
    if len(some):
        outers = np.array([framed.frames[i].outers[0] for i in some])
        shape = np.array([(framed.frames[i].ranks, framed.frames[i].microbatches, framed.frames[i].chunks) for i in some])
        result[some] = _bound(whole[outers], back[outers], shape[:, 0], shape[:, 1], shape[:, 2])
    return result


def _bound(whole: FloatArray, back: FloatArray, ranks: object, microbatches: object, chunks: object) -> FloatArray:
    p, m, v = np.asarray(ranks, np.float64), np.asarray(microbatches, np.float64), np.asarray(chunks)
    with np.errstate(divide="ignore"):
        even = whole / -np.expm1(p * np.log1p(-1.0 / m))
    drain = whole + ((m - 1) * back + np.maximum(m - p, 0) * (whole - back)) / p
    result: FloatArray = np.where(v == 1, np.maximum(even, drain), m * whole / p) * (1 - 1e-9)
    return result
