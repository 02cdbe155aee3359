-- How many source paths of a backup were not read from snapshots of the host (docs/decisions/0092).
ALTER TABLE backup ADD COLUMN live_paths BIGINT;
