"""General plans: lanes, stages, split trees, orders and memory choices."""
