"""Benchmarks: ours and another way to do the same work side by side in one run, and the ratio of both. See docs/benchmarks.rst."""
