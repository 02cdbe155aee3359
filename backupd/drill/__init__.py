"""Drills: a backup is really restored, or booted, and thrown away again."""
