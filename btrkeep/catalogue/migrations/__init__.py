"""Alembic's environment: how a catalogue of an older btrkeep becomes one of this.

Forward only; a released version is never edited.
"""
