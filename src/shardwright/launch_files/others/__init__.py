"""Launches of frameworks with a form of their own: MaxText, nanotron, torchtitan."""
