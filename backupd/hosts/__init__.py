"""Hosts as they come and go: their section in the configuration, the key that reaches them, the key they answer with.

`edit` changes texts, `files` puts them in their place once the whole configuration agrees, `keys` asks ssh's programs.
"""
