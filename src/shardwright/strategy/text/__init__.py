"""The notation of grids and plans, read and printed."""
