"""Notifications: `events` finds alarms, `deduplication` what is new among them, `alarm_messages` writes the
messages, `send` sends them.

All are pure functions but `send`, `notifier`, `alarm_memory` and the ping of `dead_man_switch`.
"""
