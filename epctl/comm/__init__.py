"""Ranks that reach each other's memory: communicators, symmetric memory and the barrier, over PyTorch's devices and streams."""
