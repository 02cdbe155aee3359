"""Shared code of backupd, heatmap, balancer and web."""

__version__ = "0.1.0"
