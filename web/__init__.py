"""btrkeep-web: the dashboard. Nothing is here yet; see CHANGES.rst."""
