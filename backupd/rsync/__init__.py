"""rsync: its command line (pure), process and cell, the relay that limits its rate, and parsers of its output."""
