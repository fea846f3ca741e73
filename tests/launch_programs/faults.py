"""Programs that end in unusual ways, with their oracle: name -> program, and what must come of the run.

Every program begins with HEAD, one with torch also with GLOO. `{out}` is the folder for what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HEAD = """
import os, signal, sys, threading, time
RANK, out = int(os.environ["RANK"]), os.environ["OUT"]
def save(name, seconds=0):
    time.sleep(seconds)
    open(f"{out}/{name}", "w").write("whole")
def on_term(act):
    signal.signal(signal.SIGTERM, lambda *_: act())
"""
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
"""
# The innermost frames of a rank that is not where the others are.
LOADS = "\ndef load():\n    time.sleep(600)\n"
ELSEWHERE = LOADS + "if RANK == 1:\n    load()\ndist.all_reduce(ones)\n"


@dataclass(frozen=True)
class Fault:
    """`wanted`: exit code and cause. `words`: in every verdict. `act`: a signal to the launcher of a node, once all ranks
    have printed READY; one that is killed gives no verdict. `files`: that must be whole in the end. `shown`: in the output."""

    wanted: str
    text: str
    words: tuple[str, ...] = ()
    nodes: int = 1
    each: int = 1
    torch: bool = False
    flags: str = ""
    command: str = "{program}"
    act: tuple[str, int] | None = None
    files: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    full_disk: bool = False  # {out}/small is a volume of 1 MiB


def fault(wanted: str, text: str, *words: str, **more: object) -> Fault:
    return Fault(wanted, text, words, **more)


def gloo(wanted: str, text: str, *words: str, **more: object) -> Fault:
    return Fault(wanted, GLOO + text, words, **{"torch": True, "each": 2} | more)


def hang(text: str, *words: str, **more: object) -> Fault:
    return gloo("70 collective-timeout", text, *words, **{"flags": "--collective-timeout=8"} | more)


RANK_1 = "rank 1 of node 0 "
TRACEBACK = ("Traceback (most recent call last)",)
# As that of an AssertionError with a tensor of a GPU that hangs.
BLOCKS = "class E(Exception):\n    def __str__(self):\n        time.sleep(600)\n"
CLOSED = "[/pytorch/gloo/transport/tcp/pair.cc:1] Connection closed by peer"
SAVES = "on_term(lambda: (save(f'checkpoint-{RANK}', 2 * RANK), os._exit(75)))\nprint('READY', flush=True)\ntime.sleep(600)\n"
ON_TERM = "def stop():\n    {}\non_term(stop)\nprint('READY', flush=True)\ntime.sleep(600)\n"
MARK = "if not os.path.exists(f'{out}/mark{RANK}'):\n    save(f'mark{RANK}')\n"

PROGRAMS: dict[str, Fault] = {
    # -- ends of the process
    "an exit code before any group": fault("1 program-failed", "print('bad flag'); sys.exit(9 * (RANK == 3))",
                                           "rank 3 of node 1 (pod run-1 on n1)", "exit code 9", "bad flag", nodes=3, each=2),
    "the text of sys.exit": fault("1 program-failed", "sys.exit('no data under /data')", "rank 0 of node 0", "no data under"),
    "exit code 2 of argparse": fault("1 program-failed", "import argparse; argparse.ArgumentParser().parse_args(['--lr'] * RANK)",
                                     "exit code 2", "rank 1 of node 1", "--lr", nodes=2),
    "a script that is not there": fault("1 program-failed", "", "exit code 2", command="--no-python python /no/such.py"),
    "sys.exit with True": fault("1 program-failed", "sys.exit(True)", "exit code 1"),
    "an exit handler that exits": fault("1 program-failed", "import atexit; atexit.register(os._exit, 3)", "exit code 3"),
    "a signal in an exit handler": fault("1 killed", "import atexit; atexit.register(os.kill, os.getpid(), 11)", "SIGSEGV"),
    "an end without outputs": fault("1 program-failed", "os.close(1); os.close(2); os._exit(7)", "exit code 7"),
    "an abort": fault("1 killed", "os.abort()", "SIGABRT"),
    "a kill": fault("1 killed", "print('step 5', flush=True)\nif RANK:\n    os.kill(os.getpid(), 9)\ntime.sleep(600)",
                    "rank 1 of node 1", "SIGKILL", "step 5", nodes=2),
    "os._exit in a thread": fault("1 program-failed", "threading.Thread(target=os._exit, args=(4,)).start(); time.sleep(600)",
                                  "exit code 4", each=2),
    "a kill behind a shell": fault("1 killed", "os.kill(os.getpid(), 9)", "SIGKILL",
                                   command="--no-python bash -c 'python {program}; exit $?'"),
    "a bus error of a cut file": fault("1 killed", "import mmap\nsave('cut')\nfile = open(f'{out}/cut', 'r+b')\n"
                                       "view = mmap.mmap(file.fileno(), 5)\nos.truncate(file.fileno(), 0)\nview[0]", "SIGBUS"),
    "a last line without an end": fault("1 program-failed", "sys.stderr.write('fatal: no shard'); sys.exit(4)", "fatal: no shard",
                                        shown=("\nfatal: no shard",)),
    "a warning before an exit": fault("1 program-failed", "print('wandb: WARNING Connection refused'); sys.exit(3)", "exit code 3"),
    "a remark of c10d about IPv6": fault(
        "1 program-failed", "print('[W419 13:33:23.3 socket.cpp:752] [c10d] The IPv6 network addresses of (m, 5000) cannot be "
        "retrieved (gai error: -2 - Name or service not known).', file=sys.stderr); print('validation failed'); sys.exit(3)",
        "exit code 3"),
    "a remark of c10d, then a crash": fault(
        "1 killed", "print('[W419 13:33:23.3 socket.cpp:752] [c10d] The IPv6 network addresses of (m, 5000) cannot be "
        "retrieved (gai error: -2 - Name or service not known).', file=sys.stderr); os.kill(os.getpid(), 11)", "SIGSEGV"),
    "a remark of NCCL's monitor": fault(
        "1 program-failed", "print('[rank0]:[W1229 22:06:38.4 ProcessGroupNCCL.cpp:1662] Failed to check the \"should dump\" flag on "
        "TCPStore, with error: Broken pipe', file=sys.stderr, flush=True); os._exit(3)", "exit code 3"),
    "many remarks, then the watchdog": fault(
        "70 collective-timeout", "for i in range(35):\n    print(f'[W1126 06:00:{i} ProcessGroupNCCL.cpp:4115] [PG ID {i}] using GPU {i}')\n"
        "print('[E321 02:07 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, "
        "OpType=ALLREDUCE) ran for 600060 milliseconds.', flush=True)\nos.abort()", "SeqNum=1580"),
    "a thread that stays": fault("70 exit-timeout", "def upload():\n    time.sleep(600)\n"
                                 "if RANK:\n    threading.Thread(target=upload, name='uploader').start()",
                                 "rank 1 of node 1", "uploader", "in upload", nodes=2, flags="--exit-timeout=3"),
    "a rank that ends with 0": fault("0 done", "os._exit(0) if RANK else save('final', 4)", each=2, files=("final",)),
    "a rank that becomes another program": fault("0 done", "os.execv('/bin/true', ['true']) if RANK else save('final', 4)",
                                                 each=2, files=("final",)),
    "an uploader that is left": fault("0 done", "if not os.fork():\n    save('uploaded', 2)\n    os._exit(0)", files=("uploaded",)),
    "a failed rank's worker": fault("1 program-failed", "if not os.fork():\n    os.setsid(); on_term(str); time.sleep(60)\nsys.exit(3)"),
    "a node that ends before the other fails": fault("1 program-failed", "time.sleep(3 * RANK); sys.exit(5 * RANK)",
                                                     "rank 1 of node 1", "exit code 5", nodes=2),
    # -- exceptions
    "a failure beside lost connections": fault(
        "1 program-failed", f"if RANK:\n    raise RuntimeError('{CLOSED}')\ntime.sleep(0.4)\ndef backward():\n"
        "    raise ValueError('loss is NaN')\nbackward()", "rank 0 of node 0", "ValueError: loss is NaN", "in backward", each=3),
    "only lost connections": fault("1 peer-lost", f"raise RuntimeError('{CLOSED}')", shown=("[DEBUG]",), environ={"DEBUG_DISTRIBUTED": "1"}),
    "words of HIP": fault("1 program-failed", "raise RuntimeError('SHIPPING-API: Broken pipe while posting metrics')", shown=TRACEBACK),
    "words of CUDA": fault("1 program-failed", "raise RuntimeError('CUDA kernel cache: download failed: Connection refused')"),
    "words of torch": fault("1 program-failed", "raise RuntimeError('File /opt/torch_utils/io.py: Read error: not a PNG')"),
    "a limit of inotify": fault("1 program-failed", "raise OSError(28, 'inotify watch limit reached')"),
    "a quota": fault("1 disk-full", "raise OSError(122, 'Disk quota exceeded')", "Errno 122"),
    "a name that does not resolve": fault("1 program-failed", "import socket; raise socket.gaierror(-2, 'Name or service not known')"),
    "a text that the locale lacks": fault("1 program-failed", "raise ValueError('größe')", "ValueError: größe",
                                          environ={"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    "a text that fails": fault("1 program-failed", "class E(Exception):\n    def __str__(self):\n        raise SystemExit(0)\nraise E()",
                               "E: <str() of"),
    "a text that blocks": fault("1 program-failed", BLOCKS + "raise E()", "E ("),
    "a text that blocks in a group": fault("1 program-failed", BLOCKS + "e = E('two')\ne.exceptions = (E(),)\nraise e", "first of E"),
    "a text of sys.exit that blocks": fault("70 exit-timeout", BLOCKS + "raise SystemExit(E())", "rank 0", flags="--exit-timeout=3"),
    "an interrupt": fault("1 program-failed", "raise KeyboardInterrupt", "KeyboardInterrupt ("),
    "exceptions that are none": fault("1 program-failed", "class E(Exception):\n    exceptions = ('a', 'b')\nraise E('shard 7')", "E: shard 7"),
    "exceptions in a cycle": fault("1 program-failed", "e = ValueError('shard 7')\ne.exceptions = [e]\nraise e", "shard 7"),
    "a class without a name": fault("1 program-failed", "raise type('', (Exception,), {})('shard 7')", "shard 7"),
    "five megabytes of text": fault("1 program-failed", "raise ValueError('x' * 5_000_000)", "ValueError"),
    "a hook of the program": fault("1 program-failed", "sys.excepthook = lambda *_: save('emergency', 2)\nraise ValueError('shard 7')",
                                   "shard 7", files=("emergency",)),
    # -- what is saved after a failure, and by a stop
    "a sibling that saves": fault("1 program-failed", "if RANK:\n    time.sleep(1)\n    sys.exit(9)\non_term(lambda: (save('late', 9), os._exit(75)))\n"
                                  "time.sleep(600)", RANK_1, "exit code 9", each=2, files=("late",)),
    "a thread that saves after an exception": fault("1 program-failed", "threading.Thread(target=save, args=('late', 4)).start()\n"
                                                    "raise ValueError('shard 7')", files=("late",)),
    "a stop that all save": fault("75 saved", SAVES, "SIGTERM", nodes=2, each=2, act=("TERM", 1), files=("checkpoint-0", "checkpoint-3")),
    "a stop of node 0": fault("75 saved", SAVES, "node 0 (pod run-0 on n0) got SIGTERM", nodes=2, act=("TERM", 0), files=("checkpoint-1",)),
    "a hang-up": fault("75 saved", SAVES, "got SIGHUP", nodes=2, act=("HUP", 1), files=("checkpoint-0",)),
    "an interrupt of the launcher": fault("75 saved", SAVES, "got SIGINT", act=("INT", 0), files=("checkpoint-0",)),
    "a stop that ends with 0": fault("75 saved", ON_TERM.format("sys.exit(0)"), "got SIGTERM", nodes=2, act=("TERM", 0)),
    "a stop that saves in finally": fault(
        "75 saved", "def stop():\n    raise SystemExit\non_term(stop)\nprint('READY', flush=True)\ntry:\n    time.sleep(600)\n"
        "finally:\n    save('late', 1)", each=2, act=("TERM", 0), files=("late",)),
    "a stop that one does not save": fault("143 stopped", ON_TERM.format("sys.exit(3 if RANK else 75)"),
                                           "not saved on node 1 (pod run-1 on n1)", nodes=2, act=("TERM", 0)),
    "a stop that is ignored": fault("143 stopped", "on_term(str)\nprint('READY', flush=True)\nwhile True:\n    time.sleep(1)",
                                    "not saved on node 0 (pod run-0 on n0), node 1", nodes=2, flags="--grace-period=3", act=("TERM", 1)),
    "a stop that fails to save": fault("1 disk-full", ON_TERM.format("raise OSError(122, 'Disk quota exceeded')"), "Errno 122",
                                       nodes=2, act=("TERM", 0)),
    "a stop behind a shell": fault("75 saved", SAVES, command="--no-python bash -c 'python {program}; exit $?'",
                                   act=("TERM", 0), files=("checkpoint-0",)),
    "a stop of a program whose output is read": fault(
        "75 saved", "def stop():\n    [(print('saving', n, flush=True), time.sleep(0.2)) for n in range(9)]\n    save('late')\n    os._exit(75)\n"
        "on_term(stop)\nprint('READY', flush=True)\ntime.sleep(600)", act=("TERM", 0), files=("late",), shown=("saving 8",),
        command="--no-python bash -c 'set -o pipefail; python -u {program} | grep --line-buffered \"\" | cat'"),
    "a launcher that is killed": fault("71 node-lost", SAVES, "node 1 (pod run-1 on n1) closed the connection", nodes=2, act=("KILL", 1)),
    "the launcher of node 0 that is killed": fault("71 node-lost", SAVES, "node 0 closed the connection", nodes=2, act=("KILL", 0)),
    "nodes that are lost again and again": fault("1 restart-loop", SAVES, "node 1", nodes=2, act=("KILL", 1), environ={"ATTEMPT": "3"}),
    "starts without progress": fault("1 restart-loop", "sys.exit(75)", environ={"ATTEMPT": "3"}),
    "ranks that ask for another start": fault("75 saved", "save(f'at{RANK}', 3 * RANK); sys.exit(75)", nodes=2, files=("at1",)),
    # -- restarts in place, progress
    "a restart in place": fault("0 done", MARK + "    sys.exit(9 * RANK)\nprint('restart', os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['ATTEMPT'])",
                                nodes=2, flags="--max-restarts=1", shown=('phase="restart in place"', "restart 1 1")),
    "a limit of restarts": fault("1 program-failed", "sys.exit(9)", "exit code 9", nodes=2, flags="--max-restarts=2", shown=("number=2",)),
    "a restart that ends with 75": fault("75 saved", MARK + "    sys.exit(9)\nsys.exit(75)", flags="--max-restarts=1"),
    "a restart with what is left": fault(
        "0 done", "import socket\nserver = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))\n" + MARK +
        "    if not os.fork():\n        os.setsid(); on_term(str); time.sleep(600)\n    sys.exit(3)", flags="--max-restarts=1"),
    "no progress": fault("70 no-progress", "def load():\n    time.sleep(600)\nload()", "in load", nodes=2,
                         flags="--progress-timeout=4 --progress-action=end"),
    "a warning of no progress": fault("0 done", "time.sleep(9)", flags="--progress-timeout=3", shown=('phase="no progress"', "in <module>")),
    "an evaluation that prints": fault("0 done", "for n in range(8):\n    print(n, flush=True); time.sleep(1)",
                                       flags="--progress-timeout=3 --progress-action=end"),
    "a thread that uploads": fault("0 done", "threading.Thread(target=save, args=('late', 12)).start()", nodes=2,
                                   flags="--progress-timeout=10 --progress-action=end --exit-timeout=16", files=("late",)),
    # -- with torch: causes
    "a cleanup before the traceback": gloo(
        "1 program-failed", "import gc\ntry:\n    if RANK:\n        raise ValueError('bad shard 17')\n    while True:\n        dist.all_reduce(ones)\n"
        "finally:\n    dist.destroy_process_group(); gc.collect(); time.sleep(9 * RANK)", "rank 1 of node 1", "bad shard 17",
        nodes=2, each=1, shown=TRACEBACK),
    "a victim that wraps its error": gloo(
        "1 program-failed", "if RANK:\n    try:\n        raise ValueError('bad shard 17')\n    finally:\n        dist.destroy_process_group(); time.sleep(5)\n"
        "try:\n    while True:\n        dist.all_reduce(ones)\nexcept RuntimeError as e:\n    raise KeyError('step 12 failed') from e", RANK_1, "bad shard 17"),
    "a barrier in finally": hang("try:\n    if RANK:\n        raise ValueError('bad shard 17')\n    dist.broadcast(ones, 1)\nfinally:\n    dist.barrier()",
                                 "bad shard 17"),
    "a missing key of a checkpoint": gloo(
        "1 program-failed", "import torch.distributed.checkpoint as dcp\ndcp.save({'a': ones}, checkpoint_id=f'{out}/ck')\n"
        "dcp.load({'b': ones}, checkpoint_id=f'{out}/ck')", "Missing key"),
    "one GPU for two ranks": gloo(
        "1 program-failed", "raise dist.DistBackendError('NCCL error in: ProcessGroupNCCL.cpp:3356, invalid usage\\nncclInvalidUsage: x\\n"
        "Last error:\\nDuplicate GPU detected : rank 1 and rank 0')", "Duplicate GPU detected"),
    "a store of its own whose port is taken": gloo(
        "1 program-failed", "import socket\nif RANK:\n    busy = socket.create_server(('127.0.0.1', 0))\n"
        "    dist.TCPStore('127.0.0.1', busy.getsockname()[1], is_master=True)\ntime.sleep(60)", RANK_1),
    "a store of its own without clients": gloo(
        "1 program-failed", "import datetime\nif RANK:\n    dist.TCPStore('127.0.0.1', 0, 2, is_master=True, timeout=datetime.timedelta(seconds=3))\n"
        "time.sleep(60)", RANK_1),
    "a worker's message": gloo(
        "1 program-failed", "class Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 8\n    def __getitem__(self, i):\n"
        "        raise ValueError(f'corrupt sample {i}')\nfor _ in torch.utils.data.DataLoader(Data(), num_workers=1):\n    pass",
        "corrupt sample", each=1),
    "a worker that is killed": gloo(
        "1 program-failed", "class Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 8\n    def __getitem__(self, i):\n"
        "        os.kill(os.getpid(), 9)\nfor _ in torch.utils.data.DataLoader(Data(), num_workers=1):\n    pass", "DataLoader worker", each=1),
    "keys of a state": gloo("1 program-failed", "torch.nn.Linear(2, 2).load_state_dict({'weight': torch.ones(3, 3)})", "size mismatch", each=1),
    "a spawned process": gloo("1 program-failed", "def work(i):\n    raise FileNotFoundError('no such dataset')\n"
                              "torch.multiprocessing.start_processes(work, nprocs=1, start_method='fork')", "no such dataset", each=1),
    "a wrapped lack of memory": gloo("1 gpu-out-of-memory", "try:\n    raise torch.OutOfMemoryError('CUDA out of memory')\n"
                                     "except RuntimeError as e:\n    raise KeyError('step 12') from e", each=1),
    "parameters without a gradient": gloo(
        "1 program-failed", "m = torch.nn.parallel.DistributedDataParallel(torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]))\n"
        "m.forward = lambda x: m.module[0](x)\nraise RuntimeError('Expected to have finished reduction in the prior iteration')", "finished reduction"),
    "an exception in backward": gloo(
        "1 program-failed", "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(c, v):\n        return v.clone()\n    @staticmethod\n"
        "    def backward(c, g):\n        raise ValueError('gradient is NaN')\nx = torch.ones(1, requires_grad=True)\n"
        "if RANK:\n    F.apply(x).sum().backward()\ndist.all_reduce(ones)", RANK_1, "gradient is NaN", "in backward", shown=TRACEBACK),
    "a rank that ends early": gloo("1 early-exit", "if not RANK:\n    time.sleep(1)\n    dist.all_reduce(ones)", RANK_1),
    "a rank that is killed": gloo("1 killed", "if RANK:\n    os.kill(os.getpid(), 9)\ndist.all_reduce(ones)", RANK_1, "SIGKILL"),
    "a full disk of torch.save": gloo("1 disk-full", "torch.save({'w': torch.ones(1 << 20)}, f'{out}/small/model.pt')", each=1, full_disk=True),
    "a full disk of numpy": gloo("1 disk-full", "import numpy\nnumpy.save(f'{out}/small/x.npy', numpy.ones(1 << 20))", each=1, full_disk=True),
    "a full disk of open": fault("1 disk-full", "open(f'{out}/small/x', 'wb').write(bytes(2 << 20))", full_disk=True),
    "an asynchronous checkpoint beside a failure": gloo(
        "1 program-failed", "if RANK == 1:\n    time.sleep(2)\n    raise ValueError('bad batch')\non_term(str)\nif RANK == 0:\n"
        "    threading.Thread(target=save, args=('async', 8)).start()\n    dist.recv(ones, src=2)\ntime.sleep(100)",
        "rank 1 of node 1", "bad batch", nodes=3, each=1, files=("async",)),
    "a stop that ends training with 0": gloo(
        "75 saved", "stop = []\non_term(lambda: stop.append(1))\nflag = torch.zeros(1)\nprint('READY', flush=True)\nwhile not flag.item():\n"
        "    flag[0] = len(stop)\n    dist.all_reduce(flag)\n    time.sleep(0.05)\nsave(f'saved{RANK}')\nsys.exit(0)",
        act=("TERM", 0), files=("saved0", "saved1")),
    "eight nodes": gloo("0 done", "dist.barrier()", nodes=8, each=1, shown=("world=8",)),
    "a failure of eight nodes": gloo("1 program-failed", "if RANK == 5:\n    raise ValueError('bad shard 17')\nwhile True:\n    dist.all_reduce(ones)",
                                     "rank 5 of node 5 (pod run-5 on n5)", "bad shard 17", nodes=8, each=1),
    # -- with torch: hangs, and the rank that is named
    "a rank that is elsewhere": hang(ELSEWHERE, "rank 1 of node 1 (pod run-1 on n1) is at ", "in load", "rank 0 of node 0", nodes=2, each=1),
    "a functional collective": hang("from torch.distributed import _functional_collectives as f\n" + LOADS +
                                    "if RANK:\n    load()\nf.all_reduce(ones, 'sum', [0, 1]).wait()", RANK_1 + "(pod run-0 on n0) is at ", "in load"),
    "an asynchronous wait": hang(LOADS + "if RANK:\n    load()\ndist.all_reduce(ones, async_op=True).wait()", "in load"),
    "a monitored barrier": hang(LOADS + "if RANK:\n    load()\nimport datetime\ndist.monitored_barrier(timeout=datetime.timedelta(seconds=4), wait_all_ranks=True)",
                                "in load"),
    "a group of its own": hang("group = dist.new_group([0, 1])\n" + LOADS + "if RANK:\n    load()\ndist.all_reduce(ones, group=group)",
                               "rank 1 (0) is behind"),
    "different collectives": hang("def evaluate():\n    dist.barrier()\ndef step():\n    dist.broadcast(ones, src=0)\n"
                                  "step() if RANK else evaluate()\ndist.all_reduce(torch.ones(9))", "in evaluate", "in step"),
    "a loader that blocks": hang(
        "class Slow(torch.utils.data.Dataset):\n    def __len__(self):\n        return 4\n    def __getitem__(self, i):\n        time.sleep(600)\n"
        "def train():\n    for _ in torch.utils.data.DataLoader(Slow(), num_workers=1):\n        pass\nif RANK:\n    train()\ndist.all_reduce(ones)",
        "in train"),
    "a regular expression that holds the lock": hang("import re\ndef parse():\n    re.match('(a+)+$', 'a' * 40 + 'b')\nif RANK:\n    parse()\ndist.all_reduce(ones)",
                                                     RANK_1),
    "a slow save of rank 0": hang("def save_all():\n    time.sleep(600)\nif not RANK:\n    save_all()\ndist.barrier()", "rank 0 of node 0", "in save_all"),
    "training in a thread": hang("def load_shard():\n    time.sleep(600)\ndef train():\n    if RANK:\n        load_shard()\n    dist.all_reduce(ones)\n"
                                 "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(train).result()", "in load_shard"),
    "a rank that is frozen": hang("if RANK:\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(ones)", "is stopped by a signal (SIGSTOP)"),
    "a program that starts itself again": hang(
        ELSEWHERE, "in load", command="--no-python bash -c 'exec python -u -c \"import os, sys; os.execv(sys.executable, [sys.executable, sys.argv[1]])\" {program}'"),
    "a hang behind a shell": hang(ELSEWHERE, "in load", command="--no-python bash -c 'python -c pass; python {program}'"),
    "a wrong world": fault("70 collective-timeout", "import torch.distributed as dist\ndist.init_process_group('gloo', world_size=3, rank=RANK)",
                           torch=True, each=2, flags="--collective-timeout=8"),
    "a slow import": fault("69 slow-import", "open(f'{out}/slowly.py', 'w').write('import time; time.sleep(600)')\nsys.path.append(out)\n"
                           "if RANK:\n    import slowly\nimport torch.distributed as dist\ndist.init_process_group('gloo')",
                           RANK_1, torch=True, each=2, flags="--collective-timeout=8"),
}  # fmt: skip
