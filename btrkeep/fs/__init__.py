"""Linux functions that are missing in Python's os module: openat2(2) below a folder, reflinks, FIEMAP, reading data without holes,
and files that are replaced atomically.
"""
