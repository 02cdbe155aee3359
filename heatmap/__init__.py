"""btrfs-heatmap: pictures of a mounted btrfs."""
