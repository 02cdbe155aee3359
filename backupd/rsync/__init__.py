"""rsync: the command that is run (pure), what it says (parsers), and what that means (pure)."""
