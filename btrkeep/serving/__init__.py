"""What unprivileged programs ask of `backupd serve`, the root service behind a Unix socket: its words, and who asks."""
