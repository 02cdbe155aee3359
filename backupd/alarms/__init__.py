"""Who is told what, and when: `events` sees what is wrong, `deduplication` what is new of it, `words` says it, `send` sends it.

All but `send`, `journal` and `ping` are pure functions.
"""
