"""The program that hosts have: btrkeep_source.py, which is copied to them as one file named btrkeep-source.

It imports nothing of this project, and nothing here imports it: the server and a host only share the requests and answers.
"""
