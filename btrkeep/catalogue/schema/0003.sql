-- When a running transfer last advanced: `updated` is written every two seconds, also while it does not.
ALTER TABLE progress ADD COLUMN advanced TEXT;
