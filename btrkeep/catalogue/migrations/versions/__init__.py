"""One module for each version of the schema. None imports tables.py, which always describes the newest version."""
