"""What Python's os module lacks of Linux: openat2(2) below a folder, reflinks, and the map of a file's extents (FIEMAP)."""
