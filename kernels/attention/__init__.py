"""Attention, forward and backward, of bf16 and fp16 heads up to 512 wide."""
