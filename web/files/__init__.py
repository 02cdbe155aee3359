"""Files of backups: browse any backup, see the versions of a file, compare two backups, download."""
