"""Logins: users, sessions, tokens, and limits on attempts."""
