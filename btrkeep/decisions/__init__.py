"""What commands and dashboard decide alike: functions of plain data and an explicit `now`, with a reason attached to every answer.

They touch no clock, database, process or filesystem. Nothing is imported here: who asks one question loads one answer.
"""
