"""Healthy but odd programs: name -> files of a folder, the command in it, and what it may print.

`{python}` is the interpreter with -u, `{out}` the folder for what a program writes. FACTS writes
what a program can see of its own process.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FACTS = r"""
import atexit, faulthandler, gc, json, os, resource, signal, sys, threading, warnings
def facts(out, name="facts"):
    main = sys.modules["__main__"]
    inherited = lambda fd: os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
    found = {
        "file": getattr(main, "__file__", None), "spec": getattr(main.__spec__, "name", None),
        "package": main.__package__, "builtins": main.__builtins__.__name__, "argv": sys.argv, "orig": sys.orig_argv[1:],
        "path": sys.path, "meta_path": [str(type(each)) + getattr(each, "__name__", "") for each in sys.meta_path],
        "path_hooks": len(sys.path_hooks), "flags": str(sys.flags), "executable": sys.executable,
        "excepthook": sys.excepthook is sys.__excepthook__, "unraisable": sys.unraisablehook is sys.__unraisablehook__,
        "threadhook": threading.excepthook is threading.__excepthook__, "trace": str(sys.gettrace()),
        "profile": str(sys.getprofile()), "threads": [each.name for each in threading.enumerate()],
        "sitecustomize": "sitecustomize" in sys.modules, "modules": sorted(set(sys.modules) - LOADED),
        "signals": {n: str(signal.getsignal(n)) for n in range(1, 65) if n not in (9, 19, 32, 33)},
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
        "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")),
        "umask": os.umask(0o22), "nice": os.nice(0), "cwd": os.getcwd(), "leads": os.getpgid(0) == os.getpid(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()], "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(), "faulthandler": faulthandler.is_enabled(),
        "filters": [str(each) for each in warnings.filters], "stdin": inherited(0),
        "encodings": [sys.stdin.encoding, sys.stdout.encoding, sys.getfilesystemencoding()],
        "children": open(f"/proc/self/task/{os.getpid()}/children").read().split(),
        "environ": sorted(name for name in os.environ if not name.startswith("GPU_CHARTS_")),
    }
    os.umask(found["umask"])
    json.dump(found, open(f"{out}/{name}.json", "w"), indent=1, sort_keys=True, default=str)
"""
LOADED = "import sys; LOADED = set(sys.modules)\n"


@dataclass(frozen=True)
class Program:
    """`files`: path -> text. `command`: as for torchrun. `code`: its exit code under Python."""

    files: dict[str, str]
    command: str = "train.py {out}"
    code: int = 0
    environ: dict[str, str] = field(default_factory=dict)
    sorted_lines: bool = False  # several processes print


def script(text: str, code: int = 0, **more: object) -> Program:
    return Program({"train.py": text}, code=code, **more)


OUT = "import sys; out = sys.argv[1]\n"
SAVES = """
class Config:
    lr = 0.1
def save():
    time.sleep(1)
    open(f"{out}/final.ckpt", "wb").write(pickle.dumps(Config()))
"""
BASE = OUT + "import os, pickle, time\n"

PROGRAMS: dict[str, Program] = {
    "facts of a script": Program({"train.py": LOADED + FACTS + OUT + "facts(out)\n"}),
    "facts of a module": Program({"pkg/__init__.py": "", "pkg/train.py": LOADED + FACTS + OUT + "facts(out)\n"},
                                 "-m pkg.train {out}"),
    "facts of a package": Program({"pkg/__init__.py": "", "pkg/__main__.py": LOADED + FACTS + OUT + "facts(out)\n"},
                                  "-m pkg {out}"),
    "facts of a folder": Program({"app/__main__.py": LOADED + FACTS + OUT + "facts(out)\n"}, "app {out}"),
    "facts after a chdir": script(LOADED + FACTS + BASE + "os.chdir('/'); open(__file__); facts(out)\n"),
    "facts with PYTHONPATH": script(LOADED + FACTS + OUT + "facts(out)\n", environ={"PYTHONPATH": "/nowhere:/other"}),
    "facts with a safe path": script(LOADED + FACTS + OUT + "facts(out)\n",
                                     environ={"PYTHONSAFEPATH": "1", "PYTHONPATH": "/nowhere"}),
    "facts behind exec": script(
        "import os, sys\nif len(sys.argv) < 3:\n"
        "    os.execv(sys.executable, [sys.executable, '-u', sys.argv[0], sys.argv[1], 'again'])\n"
        + LOADED + FACTS + OUT + "facts(out)\n"),
    "facts of a child": Program({"train.py": BASE + "import subprocess\nsubprocess.run([sys.executable, 'child.py', out], check=True)\n",
                "child.py": LOADED + FACTS + OUT + "facts(out)\n"}),
    "a neighbour behind a link": Program({"repo/helper_mod.py": "x = 1\n", "repo/train.py": OUT + "import helper_mod\n"
                                          "open(out + '/done', 'w')\n", "train.py -> repo/train.py": ""}),
    "source of a function after a chdir": script(
        BASE + "import inspect\nos.chdir('/')\ndef f(x):\n    return x\nprint(inspect.getsource(f))\n"),
    "a class of the main module, by a thread": script(
        BASE + "import threading\n" + SAVES + "threading.Thread(target=save).start()\nprint('done')\n"),
    "a class of the main module, by an executor": script(
        BASE + "from concurrent.futures import ThreadPoolExecutor\n" + SAVES + "ThreadPoolExecutor(1).submit(save)\n"),
    "a class of the main module, at exit": script(BASE + "import atexit\n" + SAVES + "atexit.register(save)\n"),
    "a pickled class under -m": Program({"pkg/__init__.py": "", "pkg/train.py": BASE + SAVES + "save()\n"},
                                        "-m pkg.train {out}"),
    "spawned workers": script(
        "import multiprocessing, sys\ndef work(x):\n    return x * x\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        open(sys.argv[1] + '/sum', 'w').write(str(sum(pool.map(work, range(9)))))\n"),
    "forked workers": script(
        BASE + "import multiprocessing\ndef work(x):\n    return x * x\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    open(out + '/sum', 'w').write(str(sum(pool.map(work, range(9)))))\n"),
    "a hundred forks": script(
        BASE + "for n in range(100):\n    if not os.fork():\n        os._exit(n % 2)\nprint(sum(os.wait()[1] >> 8 for _ in range(100)))\n"),
    "a fork whose child goes on": script(
        BASE + "import time\npid = os.fork()\nif not pid:\n    time.sleep(0.5)\n    open(out + '/child', 'w')\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"),
    "a hook for exceptions": script(
        OUT + "def hook(kind, value, tb):\n    open(out + '/emergency', 'w').write(str(value))\n"
        "    sys.__excepthook__(kind, value, tb)\nsys.excepthook = hook\nraise ValueError('loss is NaN')\n", code=1),
    "a hook of threads": script(
        OUT + "import threading\nthreading.excepthook = lambda args: open(out + '/thread', 'w').write(str(args.exc_value))\n"
        "def work():\n    raise KeyError('shard')\nthread = threading.Thread(target=work)\nthread.start()\nthread.join()\n"),
    "exit handlers in their order": script("import atexit\nfor n in range(5):\n    atexit.register(print, n)\n"),
    "an exit handler that raises": script("import atexit\natexit.register(lambda: 1 / 0)\nprint('end')\n"),
    "an exit handler that exits": script("import atexit, os\natexit.register(os._exit, 3)\n", code=3),
    "the image's sitecustomize": Program({"site/sitecustomize.py": "import atexit; atexit.register(print, 'telemetry')\n"
                                          "import builtins; builtins.FROM_SITE = 7\n", "train.py": "print(FROM_SITE)\n"},
                                         environ={"PYTHONPATH": "{folder}/site"}),
    "a sitecustomize that fails": Program({"site/sitecustomize.py": "import os\nif 'RANK' in os.environ:\n    raise RuntimeError('broken image')\n",
                                           "train.py": "print('runs')\n"}, environ={"PYTHONPATH": "{folder}/site"}),
    "a usercustomize": Program({"site/usercustomize.py": "print('user')\n", "train.py": "print('runs')\n"},
                               environ={"PYTHONPATH": "{folder}/site"}),
    "sys.exit with a text": script("import sys; sys.exit('no data under /data')\n", code=1),
    "sys.exit with None": script("import sys; sys.exit(None)\n"),
    "sys.exit with True": script("import sys; sys.exit(True)\n", code=1),
    "sys.exit with 256": script("import sys; sys.exit(256)\n"),
    "sys.exit with 3": script("import sys; sys.exit(3)\n", code=3),
    "os._exit in a thread": script("import os, threading\nthreading.Thread(target=os._exit, args=(4,)).start()\n"
                                   "import time; time.sleep(9)\n", code=4),
    "open files at the end": script(
        OUT + "import gzip\nkept = open(out + '/plain', 'w')\nkept.write('metrics')\nzipped = gzip.GzipFile(out + '/z.gz', 'w', mtime=0)\n"
        "zipped.write(b'metrics')\n"),
    "a __del__ at the end": script(
        OUT + "class Last:\n    opened = open\n    def __del__(self):\n        print('deleted')\nlast = Last()\n"),
    "a loop into head": Program({"run.sh": "set -e\nid=$(while :; do echo abcdef; done | head -1)\necho id=$id\n"},
                                "--no-python bash run.sh {out}"),
    "a heredoc, a trap and a background job": Program(
        {"run.sh": "trap 'echo trapped' EXIT\n(sleep 0.3; echo later) &\ncat <<END\n$1 \"x\"\nEND\nwait\nexit 5\n"},
        "--no-python bash run.sh {out}", code=5),
    "a helper that fails": script(
        "import subprocess, sys, time\nhelper = subprocess.run([sys.executable, '-c', 'raise ValueError'])\n"
        "time.sleep(7)\nprint(helper.returncode)\n"),
    "a shell that tries again": Program(
        {"run.sh": "until {python} train.py $1; do sleep 7; done\n",
         "train.py": BASE + "if not os.path.exists(out + '/mark'):\n    open(out + '/mark', 'w')\n    raise OSError('busy')\n"},
        "--no-python bash run.sh {out}"),
    "python in a pipe": Program({"run.sh": "set -o pipefail\n{python} train.py | grep -v two | tee $1/log\n",
                                 "train.py": "print('one'); print('two'); print('three')\n"},
                                "--no-python bash run.sh {out}"),
    "exec of python in a shell": Program({"run.sh": "cd /\nexec {python} \"$OLDPWD/train.py\" \"$@\"\n",
                                          "train.py": BASE + "print(os.getcwd(), sys.argv[2:])\n"},
                                         "--no-python bash run.sh {out} a 'b c' ''"),
    "a python without its environment": Program(
        {"run.sh": "env -i {python} -c 'import os; print(sorted(os.environ))'\n{python} -I -S -c 'print(2)'\n"},
        "--no-python sh run.sh {out}"),
    "arguments": Program(
        {"train.py": "import sys; print(sys.argv[2:])\n"},
        "train.py {out} --nnodes 9 -- -m '' 'two words' --flag='$HOME;#' * \"it's\""),
    "an argument that is not UTF-8": Program({"train.py": "import os, sys; print(os.fsencode(sys.argv[2]))\n"},
                                             "train.py {out} \udce9.yaml"),
    "a name with spaces and quotes": Program({"my 'train'.py": "print('runs')\n"}, "\"my 'train'.py\" {out}"),
    "both outputs": script("import sys\nprint('out')\nprint('err', file=sys.stderr)\n"),
    "bytes without a newline": script("import os\nos.write(1, bytes(range(1, 256)))\n"),
    "a long line": script("print('x' * 1_000_000)\n"),
    "many lines": script("for n in range(200_000):\n    print(n)\n"),
    "a closed output": script("import os, sys\nos.close(1)\nos.close(2)\nopen(sys.argv[1] + '/done', 'w')\n"),
    "all descriptors closed": script(
        OUT + "import os, time\nos.closerange(0, 1024)\nfiles = [open(f'{out}/{n}', 'wb') for n in range(24)]\n"
        "time.sleep(1.5)\nfor file in files:\n    file.write(b'part')\n    file.close()\n"),
    "an input": script("import sys; print(repr(sys.stdin.read()))\n"),
    "signals of its own": script(
        BASE + "import signal\nseen = []\nfor n in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCHLD):\n"
        "    signal.signal(n, lambda n, _: seen.append(n))\n    os.kill(os.getpid(), n)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2)\nsignal.pause()\nprint([int(n) for n in seen])\n"),
    "an ignored SIGTERM": script("import os, signal\nsignal.signal(15, signal.SIG_IGN)\nos.kill(os.getpid(), 15)\nprint('on')\n"),
    "death by a signal": script("import os; os.kill(os.getpid(), 9)\n", code=-9),
    "a file size limit": script(
        OUT + "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    open(out + '/big', 'wb', buffering=0).write(bytes(5000))\n    open(out + '/more', 'ab').write(b'x')\n"
        "except OSError as error:\n    print(error)\n"),
    "few descriptors": script(
        "import os, resource, threading, time\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\ntime.sleep(1)\n"
        "print(len(os.listdir('/proc/self/fd')))\n"),
    "descriptors and threads over time": script(
        BASE + "def count():\n    return len(os.listdir('/proc/self/fd'))\n"
        "first = count()\ntime.sleep(3)\nprint(first == count())\n"),
    "a session and a process group": script(
        BASE + "import subprocess\nchild = subprocess.Popen(['sleep', '0.2'], start_new_session=True)\n"
        "print(os.getsid(0) == os.getpid(), child.wait())\n"),
    "audit hooks of its own": script(
        "import sys\nseen = []\nsys.addaudithook(lambda event, args: seen.append(event) if event == 'mine' else None)\n"
        "sys.audit('mine')\nprint(seen)\n"),
    "an import hook of its own": script(
        "import importlib.abc, sys\nclass Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n        if name == 'asked_for':\n            print('asked')\n"
        "sys.meta_path.insert(0, Finder())\ntry:\n    import asked_for\nexcept ImportError as error:\n    print(error)\n"),
    "exceptions that are hard to describe": script(
        "class E(Exception):\n    def __init__(self, *errors):\n        self.exceptions = errors\n"
        "    def __str__(self):\n        raise SystemExit(0)\nE.__name__ = ''\ne = E('a', 'b')\ne.__cause__ = e\nraise e\n", code=1),
    "a deep recursion": script("import sys\nsys.setrecursionlimit(300)\ndef f():\n    f()\ntry:\n    f()\n"
                               "except RecursionError:\n    print('deep')\n"),
    "a daemon thread at the end": script(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('end')\n"),
    "two hundred threads": script(
        "import threading, time\nall = [threading.Thread(target=time.sleep, args=(0.5,)) for _ in range(200)]\n"
        "[t.start() for t in all]; [t.join() for t in all]; print(threading.active_count())\n"),
    "import times": Program({"run.sh": "{python} -X importtime -c pass 2>&1 | grep -c sitecustomize | sed 's/[1-9]/some/'\n"},
                            "--no-python sh run.sh {out}"),
}  # fmt: skip

# With torch: name -> text of a program of two ranks.
WITH_TORCH = {
    "groups that are destroyed": """
import os, resource, sys, time
import torch, torch.distributed as dist
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
dist.init_process_group("gloo")
def settled():  # torch's own threads come and go, slowly on a busy machine
    seen, end = [], time.monotonic() + 10
    while time.monotonic() < end and (len(seen) < 5 or len(set(seen[-5:])) > 1):
        seen.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
        time.sleep(0.1)
    return seen[-1]
counts = []
for i in range(200):
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    del group
    if i % 50 == 49:
        counts.append(settled())
spread = [max(column) - min(column) for column in zip(*counts)]
assert max(spread) <= 4, counts  # a leak has hundreds
dist.destroy_process_group()
print("flat")
""",
    "an asynchronous checkpoint": """
import pickle, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
class Config:
    lr = 0.1
def save():
    time.sleep(20)
    torch.save({"config": Config(), "weights": torch.arange(4)}, f"{sys.argv[1]}/{dist.get_rank()}.pt")
dist.barrier()
threading.Thread(target=save).start()
print("end of the main program")
""",
    "a training": """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save([p.detach() for p in model.parameters()], f"{sys.argv[1]}/{dist.get_rank()}.pt")
dist.destroy_process_group()
""",
}
