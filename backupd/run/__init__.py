"""The night: which hosts run when (`night`), one host from its lock to its row (`host`), its source paths, and the work subvolume.

`verdict` judges what rsync said (pure); `work_subvolume` makes, continues, leaves and finishes `.working`, and looks before each.
"""
