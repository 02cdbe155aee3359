"""What Python's os module lacks of Linux: openat2(2) below a folder, reflinks, the map of a file's extents
(FIEMAP), a file's data without its holes, and files that appear as a whole."""
