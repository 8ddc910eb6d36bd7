"""verl's settings of the actor, read."""
