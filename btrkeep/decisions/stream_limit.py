"""Decides how many bytes a stream from another server may have. Pure.

A taken-over server can send without end, for example the same block of the same file again and again: that needs no room, so
`min_free` does not end it. What the server says about the size bounds a stream of an honest server, but not exactly: a backup may
hold files that the newest transfer did not count, because a path failed or a deletion was refused. So the limit is generous: a
stream of an honest server must never reach it.
"""

_FACTOR = 4
_MOST_CLAIMED = 4  # sizes of this filesystem that are believed; compression on either side makes more than one possible


def longest_stream(claimed: int | None, filesystem: int) -> int:
    """Returns the most bytes a stream may have.

    `claimed`: bytes of all files of the backup, as the other server says, None if it does not say; `filesystem`: bytes that the
    receiving filesystem has room for when it is empty. The result is between one and sixteen times that size::

        limit
        16 fs |                    ________   a claim is believed up to 4 fs
              |                 /
           fs |________________/
              +---------------+----+------- claimed
                            fs/4  4 fs
    """
    believed = min(max(claimed or 0, 0), _MOST_CLAIMED * filesystem)
    return max(filesystem, _FACTOR * believed)
