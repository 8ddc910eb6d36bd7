"""State-space mixers: convolution and recurrences."""
