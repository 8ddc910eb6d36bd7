"""RMSNorm and LayerNorm, fused and unfused."""
