"""Mixture-of-experts layers: routing tokens to experts and back, grouped GEMMs, load balancing."""
