"""Batches of texts with an image each, drawn for the small models of families that read some."""

from __future__ import annotations

from typing import Any

import torch

SQUARE = 4
"""Rows and columns of patches of the images that have some."""


def with_images(published: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Texts with places for an image each, drawn too; ``pixels`` are for Transformers."""
    config, generator = published.config, torch.Generator().manual_seed(int(ids.sum()))
    if hasattr(config.vision_config, "spatial_merge_size"):
        return with_blocks(published, ids, generator)
    if "image_token_index" not in config:
        return with_squares(published, ids, generator)
    side, patch, token = (
        config.vision_config.image_size,
        config.vision_config.patch_size,
        config.image_token_index,
    )
    pixels = torch.randn(
        (len(ids), config.vision_config.num_channels, side, side),
        generator=generator,
        dtype=torch.float64,
    )
    patches = torch.nn.functional.unfold(pixels, patch, stride=patch).mT
    text = ids[:, :-1].masked_fill(ids[:, :-1] == token, 0)
    drawn = torch.rand(text.shape, generator=generator).argsort(1).argsort(1)
    places = drawn < patches.shape[1] + (config.vision_feature_select_strategy == "full")
    image = torch.nn.functional.pad(patches, (0, 0, 1, 0))
    return {
        "text": text.masked_fill(places, token),
        "labels": ids[:, 1:],
        "image": image,
        "pixels": pixels,
    }


def with_squares(
    published: Any, ids: torch.Tensor, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Texts with places for the image tokens of a square image each; ``pixels`` are patches row by
    row, ``grid`` says their rows."""
    config, patch = published.config, published.config.vision_config.patch_size
    pixels = torch.randn(
        (len(ids), 3, SQUARE * patch, SQUARE * patch), generator=generator, dtype=torch.float64
    )
    patches = torch.nn.functional.unfold(pixels, patch, stride=patch).mT
    pooled = getattr(config.vision_config, "pooling_kernel_size", None)
    high, wide = (pooled, pooled) if pooled else config.vision_config.merge_kernel_size
    blocks = (
        torch.arange(SQUARE**2)
        .view(SQUARE // high, high, SQUARE // wide, wide)
        .transpose(1, 2)
        .flatten()
    )
    # Token 0 stands for padding where a model has some, whose embedding has no gradient in
    # Transformers.
    text = ids[:, :-1].masked_fill((ids[:, :-1] == config.image_token_id) | (ids[:, :-1] == 0), 1)
    places = torch.rand(text.shape, generator=generator).argsort(1).argsort(1) < SQUARE**2 // (
        high * wide
    )
    text = text.masked_fill(places, config.image_token_id)
    if pooled:
        pixels = patches.unflatten(-1, (3, -1)).transpose(-1, -2).flatten(-2)
        at = torch.arange(SQUARE**2)
        where = torch.stack([at % SQUARE, at // SQUARE], dim=-1).expand(len(ids), -1, -1)
        return {
            "text": text,
            "labels": ids[:, 1:],
            "image": pixels[:, blocks],
            "pixels": pixels,
            "where": where,
        }
    return {
        "text": text,
        "labels": ids[:, 1:],
        "image": patches[:, blocks],
        "pixels": patches.flatten(0, 1).unflatten(1, (3, patch, patch)),
        "grid": torch.tensor([[1, SQUARE, SQUARE]] * len(ids)),
    }


def with_blocks(
    published: Any, ids: torch.Tensor, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Texts with places for the image tokens of a square image each, in one row where it counts;
    patches stand block by block, of as many equal frames.
    """
    config, vision = published.config, published.config.vision_config
    patch, merged = vision.patch_size, vision.spatial_merge_size
    in_row = hasattr(vision, "in_channels")
    channels = vision.in_channels if in_row else vision.num_channels
    pixels = torch.randn(
        (len(ids), channels, SQUARE * patch, SQUARE * patch),
        generator=generator,
        dtype=torch.float64,
    )
    blocks = (
        torch.arange(SQUARE**2)
        .view(SQUARE // merged, merged, SQUARE // merged, merged)
        .transpose(1, 2)
        .flatten()
    )
    patches = (
        torch.nn.functional.unfold(pixels, patch, stride=patch)
        .mT[:, blocks]
        .unflatten(2, (channels, 1, patch**2))
    )
    patches = patches.expand(-1, -1, -1, vision.temporal_patch_size, -1).flatten(2)
    text = ids[:, :-1].masked_fill(
        (ids[:, :-1] == config.image_token_id) | (ids[:, :-1] == config.video_token_id), 0
    )
    tokens = SQUARE**2 // merged**2
    starts = torch.randint(0, text.shape[1] - tokens + 1, (len(ids), 1), generator=generator)
    number = (
        torch.arange(text.shape[1]) - starts
        if in_row
        else torch.rand(text.shape, generator=generator).argsort(1).argsort(1)
    )
    return {
        "text": text.masked_fill((number >= 0) & (number < tokens), config.image_token_id),
        "labels": ids[:, 1:],
        "image": patches,
        "pixels": patches.flatten(0, 1),
        "grid": torch.tensor([[1, SQUARE, SQUARE]] * len(ids)),
    }
