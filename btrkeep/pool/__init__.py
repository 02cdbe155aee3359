"""The btrfs that holds a pool: its marker, subvolumes, locks, and room. With treescan, the only user of python-btrfs.

This module imports nothing, so that asking for a filesystem's UUID loads no more than that needs.
"""
