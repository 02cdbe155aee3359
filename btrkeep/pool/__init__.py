"""A btrfs that holds a pool: its marker, its subvolumes, its locks, its room. With treescan, the only user of python-btrfs.

Nothing is imported here: who only asks for a filesystem's UUID loads no more than that takes.
"""
