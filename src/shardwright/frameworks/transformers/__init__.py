"""Transformers' Trainer: its settings, and the reader of frameworks that run it."""
