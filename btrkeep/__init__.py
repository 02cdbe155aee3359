"""The ground that backupd, heatmap, balancer and web stand on."""

__version__ = "0.1.0"
