"""`backupd completion`: makes a shell complete commands, options, hosts, and paths in backups."""

from btrkeep.cli.lazy import completion_command

# bash takes HOST@BACKUP for two words otherwise.
command = completion_command(
    "backupd", "commands, options, hosts and what is in backups", bash_first="COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}"
)
