"""How Sphinx builds the pages."""
