"""Faults of one node for the tests of ddp-launch: Python runs this file at its start when it is on PYTHONPATH.

FAULT_DNS_S=10    for so long names do not resolve, as when DNS is down
FAULT_CLOCK_S=60  the wall clock is so far off
"""

import os
import socket
import time

if seconds := os.environ.get("FAULT_DNS_S"):
    end, resolve = time.monotonic() + float(seconds), socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        if time.monotonic() < end and host and not str(host).startswith("127."):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(host, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo

if seconds := os.environ.get("FAULT_CLOCK_S"):
    now = time.time
    time.time = lambda: now() + float(seconds)
