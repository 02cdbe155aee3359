"""Tools for who works on btrkeep; nothing of it is installed."""
