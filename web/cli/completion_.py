"""`btrkeep-web completion`: what makes a shell complete commands and options on TAB."""

from btrkeep.cli.lazy import completion_command

command = completion_command("btrkeep-web", "commands and options")
