"""The night. From the timer to the sealed snapshot, by the steps of docs/how-a-backup-becomes-complete.rst:

- `run_hosts`: a run from its lock to its end. `host_order` decides which hosts it takes (pure), `night` runs them, a few at a time.
- `host_run`: one host's backup: its lock, hooks, deadline and rows (steps 1, 2, 9 and 10).
- `work_subvolume`: `.working` (steps 3 and 4), from its `base` or as an `interrupted` run left it.
- `source_paths`: rsync for each source path (step 5), by `backupd.rsync`; `verdict` judges its output (step 6, pure).
- `finalisation`: `.working` left for the next run, or made final (steps 6 and 8); the holes of step 7 are in `backupd.repo.holes`.
"""
