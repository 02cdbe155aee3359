"""Adds, changes and removes hosts: their section in the configuration, our ssh key, their host key.

`edit` changes texts, `config_files` replaces the files if the whole configuration is valid, `ssh_keys` calls ssh's programs.
"""
