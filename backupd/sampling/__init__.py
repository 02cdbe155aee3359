"""Samples of the pool every few minutes, and charts of months of them.

`take` asks the kernel, keeps the answer, and makes hours and days of old samples. `chart` and `picture` draw, and are pure.
btrkeep.decisions has the answers: trend, day_phases and forecast.
"""
