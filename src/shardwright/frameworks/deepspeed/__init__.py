"""DeepSpeed's JSON configuration: its settings, read and written."""
