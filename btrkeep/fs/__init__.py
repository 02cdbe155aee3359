"""Linux functions that Python's os module lacks: openat2(2) below a folder, reflinks, FIEMAP, reading data without holes, and files
that appear as a whole.
"""
