"""Results for people and for programs. Reads results, computes nothing."""
