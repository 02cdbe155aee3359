"""The root service, `backupd serve`: does what needs root for the dashboard, which has no privileges.

It listens on a Unix socket, checks who is at the other end, and has a short table of verbs. It checks each argument again, because
the dashboard may have been taken over.
docs/serve.rst describes the protocol, docs/decisions/0016-root-service.rst says why it is one.
"""
