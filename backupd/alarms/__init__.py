"""Notifications: `events` finds alarms, `deduplication` what is new among them, `words` makes messages, `send` sends them.

All are pure functions but `send`, `notifier`, `alarm_memory` and the ping in `night`.
"""
