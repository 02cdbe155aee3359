"""Numbers for Prometheus, all named in btrkeep.metrics. Alert rules and a Grafana dashboard are files in docs/monitoring.

A test holds that those two name no metric and no label that is not in the table, and that docs/monitoring.rst lists them all.
"""
