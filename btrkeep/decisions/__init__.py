"""Decisions that commands and dashboard share: functions of plain data and an explicit `now`, which return a reason with every
answer.

They use no clock, database, process or filesystem. This module imports nothing, so that each caller loads only the decision it
needs.
"""
