"""`btrkeep-web completion`: what makes a shell complete commands and options on TAB."""

from btrkeep.cli.completion import completion_command

command = completion_command("btrkeep-web", "commands and options")
