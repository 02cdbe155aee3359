"""rsync: its command line (pure), its process, the relay that limits its rate, and parsers of its output."""
