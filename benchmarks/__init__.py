"""Benchmarks: each module has `measure() -> figures` (JSON values) and `show(figures)`; `flycc bench NAME` runs one."""
