"""Injected faults of one node for the tests of ddp-launch. Python runs this file at its start if it is on PYTHONPATH.

FAULT_DNS_S=10    names do not resolve for 10 s, as when DNS is down
FAULT_STALE=A:10  node 0's name has the address A for 10 s from the first look-up, as that of the previous pod in DNS
FAULT_NO_TEMPORARY_FOLDER=1  no folder can be created
FAULT_NODE_TEST=72  the test of the node ends with this code, and does nothing
"""

import os
import socket
import sys
import time

if seconds := os.environ.get("FAULT_DNS_S"):
    end, resolve = time.monotonic() + float(seconds), socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        if time.monotonic() < end and host and not str(host).startswith("127."):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(host, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo

if setting := os.environ.get("FAULT_STALE"):
    (address, stale_s), known = setting.split(":"), socket.getaddrinfo
    looked_up = []

    def stale_getaddrinfo(host, *args, **kwargs):
        if host != os.environ["MASTER_ADDR"]:
            return known(host, *args, **kwargs)
        looked_up.append(time.monotonic())
        stale = looked_up[-1] < looked_up[0] + float(stale_s)
        return known(address if stale else host, *args, **kwargs)

    socket.getaddrinfo = stale_getaddrinfo

if os.environ.get("FAULT_NO_TEMPORARY_FOLDER"):

    def mkdir(path, *_, **__):
        raise OSError(30, "Read-only file system", path)

    os.mkdir = mkdir

if (code := os.environ.get("FAULT_NODE_TEST")) and "gpuworker.accept.accept_node" in sys.orig_argv:
    with open(os.environ["TERMINATION_LOG"], "w") as message:
        message.write(f"node=n{os.environ['NODE_RANK']} gpu=GPU-7 act=RMA code={code}\nmore")
    os._exit(int(code))
