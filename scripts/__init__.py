"""Tools for the development of btrkeep; they are not installed."""
