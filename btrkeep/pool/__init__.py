"""The btrfs that contains a pool: its marker, subvolumes, locks, and free space. Only this package and treescan use python-btrfs.

This module imports nothing, so that reading a filesystem's UUID loads only the modules for that.
"""
