"""The planner in a browser: an HTTP server whose searches run in processes of their own."""
