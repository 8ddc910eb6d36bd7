"""The HTML report: contents of its views as data, and their rendering, which computes nothing."""
