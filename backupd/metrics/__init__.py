"""Numbers for Prometheus, and what is made of them: the alert rules, the Grafana dashboard and the table in docs/monitoring.rst.

One table, `table.METRICS`, says which metrics there are; the rest names them only through it, so that nothing can drift apart.
`python -m backupd.metrics docs` writes the three documents anew; a test says when that is due.
"""
