"""`btrfs-balancer completion`: what makes a shell complete commands, options and mount points on TAB."""

from btrkeep.cli.lazy import completion_command

command = completion_command("btrfs-balancer", "commands, options and mount points")
