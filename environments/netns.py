"""Opens a listening socket in the network namespace of a process, and hands it to whoever started this.

Run as a script with nothing but the standard library: joining a namespace is for a process of one thread.

    python -I -S netns.py PID PORT DESCRIPTOR
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701  # the user namespace that a namespace belongs to


def join(pid: int) -> None:
    """Move into the network namespace of a process. Raises OSError."""
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if os.geteuid() != 0:
        _setns(fcntl.ioctl(net, NS_GET_USERNS), CLONE_NEWUSER)
    _setns(net, CLONE_NEWNET)


def _setns(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) != 0:
        raise OSError(ctypes.get_errno(), f"cannot join a namespace: {os.strerror(ctypes.get_errno())}")


def main(pid: int, port: int, descriptor: int) -> None:
    """Join, listen on loopback, and send the socket."""
    join(pid)
    with socket.create_server(("127.0.0.1", port), backlog=64) as server, socket.socket(fileno=descriptor) as channel:
        socket.send_fds(channel, [b"."], [server.fileno()])


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:4]))
    except OSError as error:
        sys.exit(str(error))
