"""Requests of each kind of model and accelerator, small enough for tests."""

from __future__ import annotations

from typing import Final

from shardwright.search.search_request import Request

CANONICAL: Final = {
    "dense-8b": Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=8192, global_batch=64),
    "dense-70b": Request(
        model="llama-3.1-70b", cluster="a100-sxm-80gb:64", seq_len=4096, global_batch=256
    ),
    "dense-405b": Request(
        model="llama-3.1-405b", cluster="h100-sxm:1024", seq_len=8192, global_batch=512
    ),
    "experts": Request(model="mixtral-8x7b", cluster="mi300x:16", seq_len=4096, global_batch=128),
    "latent-attention": Request(
        model="deepseek-v2-lite", cluster="b200-sxm:16", seq_len=4096, global_batch=64
    ),
    "long-context": Request(model="qwen3-8b", cluster="gb200:72", seq_len=131072, global_batch=72),
    "hybrid": Request(
        model="mamba-codestral-7b", cluster="h200-sxm:16", seq_len=8192, global_batch=64
    ),
    "multimodal": Request(
        model="llava-1.5-7b",
        cluster="tpu-v5p:16",
        seq_len=2048,
        global_batch=128,
        image_tokens=576,
    ),
}
