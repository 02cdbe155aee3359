"""One module for each version of the schema, on its own feet: none of them imports tables.py, which moves on."""
