"""Restore to a host: choose paths and a destination, preview the effect, confirm."""
