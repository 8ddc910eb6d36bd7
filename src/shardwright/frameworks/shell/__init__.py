"""Shell scripts, followed without running them: variables, conditions, loops, functions."""
