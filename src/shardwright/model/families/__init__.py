"""Readers of Hugging Face's config.json, by family: decoders, images, and shared fields."""
