"""FlagScale's YAML over Megatron-LM's arguments, read and written."""
