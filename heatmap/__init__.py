"""btrfs-heatmap: pictures of a mounted btrfs. Nothing is here yet; see CHANGES.rst."""
