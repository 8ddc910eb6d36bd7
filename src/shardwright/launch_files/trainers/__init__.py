"""Launches of Transformers' Trainer and of frameworks that fine-tune, with Accelerate and DeepSpeed
below them.
"""
