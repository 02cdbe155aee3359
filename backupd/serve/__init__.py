"""The root service, `backupd serve`: does what needs root for the dashboard, which has no privileges.

It listens on a Unix socket, identifies the caller, and has a short table of verbs. It checks each argument again, because an
attacker may have taken over the dashboard. docs/serve.rst describes the protocol, docs/decisions/0016-root-service.rst has the
reasons.
"""
