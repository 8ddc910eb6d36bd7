"""The simulation of a deployment, iteration by iteration, and what users see of it."""
