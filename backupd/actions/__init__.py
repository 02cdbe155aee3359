"""What an administrator does to backups by hand: accept, delete, discard, forget, hold, rename, set quotas."""
