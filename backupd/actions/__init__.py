"""What an administrator does to backups by hand: accept, delete, discard, hold, forget, rename, scrub, verify."""
