"""The search for one plan over several scenarios of a cluster, among the best plans of each."""
