"""`backupd serve`: what needs root, done for the dashboard, which has none.

It listens on a Unix socket, looks who is at the other end, and knows a short table of verbs. Each argument is checked here
again: whoever asks may have been taken over.
docs/serve.rst describes the protocol, docs/decisions/0016-root-service.rst says why it is one.
"""
