"""The program and the faults of the comparison: before the start of the launcher, during the run,
and to a pod.
"""

# All steps use a process group of their own, as FSDP's do. PORT is the rendezvous port.
PROGRAM = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        time.sleep(600)
def save(*_):
    time.sleep(8 if dist.get_rank() == 0 else 0)
    print("SAVED", dist.get_rank(), flush=True)
    os._exit(75)
signal.signal(signal.SIGTERM, save)
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("FIRST", total.item(), time.time(), flush=True)
steps = dist.new_group([0, 1])
for step in range(STEPS):
    if step == 7 and dist.get_rank() == 1:
        FAULT
    dist.all_reduce(torch.ones(1), group=steps)
    time.sleep(0.05)  # the work of a step
dist.destroy_process_group()
print("LAST", flush=True)
"""
SILENT = "import socket\ns = socket.create_server(('', PORT))\nkept = []\nwhile True: kept.append(s.accept()[0])"
# Fault -> shell before the launcher on node 0 or 1.
BEFORE_START = {
    "node 0 starts 60 s late": '[ "$INDEX" != 0 ] || sleep 60',
    "node 1 never joins": '[ "$INDEX" != 1 ] || exec sleep 3600',
    "node 0's port refuses connections": '[ "$INDEX" != 0 ] || exec sleep 3600',
    "a program on that port that sends nothing": f'[ "$INDEX" != 0 ] || exec python3 -c "{SILENT}"',
    "an HTTP server on that port": '[ "$INDEX" != 0 ] || exec python3 -m http.server PORT',
    "node 1 has a different node count": '[ "$INDEX" != 1 ] || export NNODES=3 PET_NNODES=3',
    "node 0's name does not resolve": "export MASTER_ADDR=nobody.invalid PET_MASTER_ADDR=nobody.invalid",
}
# Fault -> statements of rank 1 in step 7.
DURING_RUN = {
    "rank 1 exits with 9": "sys.exit(9)",
    "rank 1 is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "rank 1 is frozen": "os.kill(os.getpid(), signal.SIGSTOP)",
    "rank 1 exits with 0 while others work": "break",
    "rank 1 sleeps in its own code": "time.sleep(600)",
    "rank 1's data loader hangs": "next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))",
    "rank 1 calls a barrier that rank 0 does not": "dist.barrier()",
    "a thread keeps rank 1 from ending": "threading.Thread(target=time.sleep, args=(600,), name='uploader').start()",
    "rank 1 needs a name that does not resolve": "import socket; socket.getaddrinfo('hub.invalid', 443)",
    "rank 1 needs a port that is in use": "import socket; [socket.create_server(('', 7007)) for _ in range(2)]",
    "rank 1 warns of a refused connection, then exits with 3": "print('Connection refused'); sys.exit(3)",
}
# Fault -> arguments of `kubectl delete pod`, for node 1's pod in the middle of the run.
TO_A_POD = {
    "node 1's pod is deleted; each rank saves on SIGTERM, rank 0 for 8 s": ("--wait=false",),
    "node 1's pod is lost": ("--wait=false", "--grace-period=0", "--force"),
}


def program(fault: str, steps: int) -> str:
    return PROGRAM.replace("FAULT", fault).replace("STEPS", str(steps))
