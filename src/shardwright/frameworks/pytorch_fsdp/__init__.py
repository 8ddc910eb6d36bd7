"""PyTorch's FSDP as several frameworks set it: strategies read, degrees written."""
