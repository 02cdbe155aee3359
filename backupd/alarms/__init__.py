"""Notifications: `events` finds alarms, `deduplication` what is new among them, `words` makes messages, `send` sends them.

All but `send`, `journal` and `ping` are pure functions.
"""
