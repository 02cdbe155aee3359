"""Samples of the pool every few minutes, and charts of months of them.

`take` asks the kernel and keeps the answer. All else is pure: `flows` makes differences of counters, `thin` makes hours and
days of samples, `chart` and `picture` draw. btrkeep.decisions has the answers: trend, day_phases and forecast.
"""
