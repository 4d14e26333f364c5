"""Plays a socket unit: listens, hands the sockets over, and becomes the daemon.

activate.py NAMES FOLDER PROGRAM [ARGUMENT]...

NAMES are the sockets' names, with colons between them. One that begins with "control" is a Unix socket in
FOLDER, any other a TCP socket on a free port. Prints the address of the first TCP socket.
"""

import fcntl
import os
import socket
import sys

FIRST = 3

names, folder, program = sys.argv[1:4]
sockets = []
address = "-"
for name in names.split(":"):
    if name.startswith("control"):
        path = os.path.join(folder, "control.sock")
        if os.path.exists(path):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o660)
    else:
        listener = socket.socket(socket.AF_INET)
        listener.bind(("127.0.0.1", 0))
        if address == "-":
            address = "%s:%d" % listener.getsockname()
    listener.listen()
    sockets.append(listener)

# Out of the way of the numbers they get.
high = [fcntl.fcntl(s.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST + 64) for s in sockets]
for index, number in enumerate(high):
    os.dup2(number, FIRST + index, inheritable=True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.environ["LISTEN_FDS"] = str(len(high))
os.environ["LISTEN_FDNAMES"] = names
print(address, flush=True)
os.execv(program, [program] + sys.argv[4:])
