"""What is in a backup: looked at, compared, given back. All of it works on plain read-only subvolumes, without a catalogue."""
