"""Proofs that a plan's step equals the unsplit model's, on a shortened and narrowed model."""
