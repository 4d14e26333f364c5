"""Freezes one event loop of a process that goes on otherwise.

freeze.py PID NAME

Stops the threads of PID whose name begins with NAME, as a debugger does, says "frozen", and lets them go on
when its standard input ends.
"""

import ctypes
import os
import sys

SEIZE, INTERRUPT = 0x4206, 0x4207
ALL_THREADS = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.ptrace.restype = ctypes.c_long

pid, name = sys.argv[1:3]
threads = []
for thread in os.listdir("/proc/%s/task" % pid):
    with open("/proc/%s/task/%s/comm" % (pid, thread)) as comm:
        if comm.read().startswith(name):
            threads.append(int(thread))
if not threads:
    sys.exit("no thread %s" % name)
for thread in threads:
    for request in (SEIZE, INTERRUPT):
        if libc.ptrace(request, thread, 0, 0) != 0:
            sys.exit("ptrace: %s" % os.strerror(ctypes.get_errno()))
    os.waitpid(thread, ALL_THREADS)
print("frozen", flush=True)
# The end of this process lets them go.
sys.stdin.read()
