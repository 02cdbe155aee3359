"""The protocol by which unprivileged programs ask `backupd serve`, the root service behind a Unix socket, and the identity of the
caller.
"""
