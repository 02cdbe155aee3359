"""The exit statuses that the manual page and the documentation must explain."""

from btrkeep.errors import Exit

EXIT_MEANING: dict[Exit, str] = {
    Exit.OK: "all complete, or nothing was due",
    Exit.ATTENTION: "some host is partial, failed or suspect; or a check found something to act on",
    Exit.USAGE: "wrong usage or configuration",
    Exit.LOCKED: "a lock is held by another process, which is named",
    Exit.UNUSABLE: "the pool is unusable: not there, not the right one, read-only or full",
    Exit.INTERRUPTED: "interrupted from the terminal (SIGINT)",
    Exit.TERMINATED: "ended by SIGTERM, or the terminal went away (SIGHUP)",
}
