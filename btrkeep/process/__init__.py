"""The only starter of processes: `programs` are waited for, a `group` runs beside others; `proc` looks at them.

Nothing is imported here: who only asks for a start time needs no asyncio, which takes longer to load than a command may take.
"""
