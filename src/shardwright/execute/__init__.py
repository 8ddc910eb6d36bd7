"""Training and serving on PyTorch under any plan.

Ranks are started in execute.launch; plans and programs are built in shardwright.program.
"""
