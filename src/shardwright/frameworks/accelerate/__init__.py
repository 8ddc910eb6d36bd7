"""Hugging Face Accelerate: the YAML of `accelerate launch`, read and written."""
