"""``python -m web``: the same as the command ``btrkeep-web``."""

from web.cli import main

main()
