"""What the kernel says of what the disk cannot give back."""

import errno

DAMAGED = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""The errors of data or metadata that cannot be given back as they were written."""
