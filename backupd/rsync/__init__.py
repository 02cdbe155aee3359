"""rsync: the command that is run (pure), its process and the relay that holds its rate, and what it says (parsers)."""
