"""Manual actions of an administrator on backups: accept, delete, discard, forget, hold, rename, set quotas."""
