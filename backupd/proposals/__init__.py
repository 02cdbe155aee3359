"""Changes of the configuration that users of the dashboard propose, and that root or an admin applies.

A proposal has a host and a few keys of a closed list. It is a file of root in the state folder; users reach it only through the
root service. Diff, check and effect come from the functions of `host set`, `check` and `expire`.
"""
