"""Rotary positions: their angles and the operator that applies them."""
