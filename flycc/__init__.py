"""flycc: a torch.compile backend for AMD MI350 GPUs (gfx950)."""
