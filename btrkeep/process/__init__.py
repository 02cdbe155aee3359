"""The only package that starts processes: `programs` runs them to their end, `group` in the background; `proc` inspects them.

This module imports nothing, so that reading a start time does not load asyncio, which takes longer than some commands.
"""
