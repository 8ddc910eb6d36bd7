"""Losses over logits: cross-entropy and the divergence from a teacher."""
