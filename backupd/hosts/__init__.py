"""Adds, changes and removes hosts: their section in the configuration, our ssh key, their host key.

`edit` changes texts, `files` puts them in their place once the whole configuration agrees, `keys` asks ssh's programs.
"""
