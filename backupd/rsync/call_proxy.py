"""ssh's ProxyCommand for a host that calls, with ProxyUseFdpass: connects to a Unix socket, and passes the connection to ssh.

`python -I -S call_proxy.py SOCKET`. It imports only the standard library, because ssh starts it as a program.
"""

import os
import socket
import sys


def main(path: str) -> int:
    """Passes the connection through the socket that is the standard output."""
    with socket.socket(socket.AF_UNIX) as connection, socket.socket(fileno=os.dup(1)) as ssh:
        try:
            connection.connect(path)
        except OSError:
            sys.stderr.write("the host has ended its call\n")
            return 1
        socket.send_fds(ssh, [b"\0"], [connection.fileno()])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
