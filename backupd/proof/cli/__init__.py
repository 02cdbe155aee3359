"""The commands of proof: `verify`, `damaged` and `scrub`."""
