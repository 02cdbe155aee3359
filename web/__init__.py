"""btrkeep-web: the dashboard."""
