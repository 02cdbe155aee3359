"""Notifications: `events` finds alarms, `deduplication` selects the new ones, `alarm_messages` writes the messages, `send` sends
them.

All are pure functions except `send`, `notifier`, `alarm_memory` and the ping of `dead_man_switch`.
"""
