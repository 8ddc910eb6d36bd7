"""Workers of a deployment, their notation, and the settings of their engine and scheduler."""
