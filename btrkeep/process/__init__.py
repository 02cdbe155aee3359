"""The only starter of processes: `programs` runs them to their end, `group` in the background; `proc` inspects them.

This module imports nothing, so that asking for a start time does not load asyncio, which takes longer than some commands.
"""
