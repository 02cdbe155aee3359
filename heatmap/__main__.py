"""``python -m heatmap``: the same as the command ``btrfs-heatmap``."""

from heatmap.cli import main

main()
