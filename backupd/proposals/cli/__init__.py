"""The commands of this feature, and what they print."""
