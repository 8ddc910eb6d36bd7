"""The search for one plan over several scenarios of a cluster, by the plans that each scenario ranks."""
