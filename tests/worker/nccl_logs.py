"""Failures of NCCL as torch and NCCL report them, reduced to the lines that carry the fact.

`source`: a public report of it. `signal`: how the rank ended. `raises`: class and text of the
Python exception. `prints`: lines, of which the last counts the frames of a stack. Numbers are
shortened.
"""

from __future__ import annotations

LOGS = [
    {
        'name': 'all-reduce timed out, torch 2.6',
        'source': 'https://github.com/hiyouga/LlamaFactory/issues/7396',
        'signal': 6,
        "prints": (
            '[rank0]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operat'
            'ion timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Tim'
            'eout(ms)=600000) ran for 600060 milliseconds before timing out.\n'
            '[rank0]:[E321 02:07:08.465 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error '
            'or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed N'
            'CCL work: 1579.\n'
        ),
        'cause': 'collective-timeout',
        "words": 'SeqNum=1580 ALLREDUCE',
    },
    {
        'name': 'reduce-scatter timed out',
        'source': 'https://github.com/hiyouga/LlamaFactory/issues/6269',
        'signal': 6,
        "prints": (
            '[rank4]:[E1206 18:44:12.755 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog caught collective opera'
            'tion timeout: WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, Timeout(ms)'
            '=600000) ran for 600099 milliseconds before timing out.\n'
            "terminate called after throwing an instance of 'c10::DistBackendError'"
        ),
        'cause': 'collective-timeout',
        "words": 'SeqNum=7753 _REDUCE_SCATTER_BASE',
    },
    {
        'name': 'timed out, torch 1.12, no rank prefix',
        'source': 'https://github.com/OFA-Sys/OFA/issues/271',
        'signal': 6,
        "prints": (
            '[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(Se'
            'qNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing '
            'out.'
        ),
        'cause': 'collective-timeout',
        "words": 'SeqNum=469508',
    },
    {
        'name': 'timed out behind a progress bar on the same line',
        'source': 'https://github.com/pytorch/pytorch/issues/118369',
        'signal': 6,
        "prints": (
            'Epoch 0:   6%|##        | 32040/500150 [6:28:43<94:39:17,  1.37it/s][E ProcessGroupNCCL.cpp:458'
            '] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUC'
            'E, Timeout(ms)=1800000) ran for 25624887 milliseconds before timing out.'
        ),
        'cause': 'collective-timeout',
        "words": 'SeqNum=96120',
    },
    {
        'name': 'timed out, then hundreds of lines of a stack',
        'source': 'https://github.com/XPixelGroup/BasicSR/issues/737',
        'signal': 6,
        "prints": (
            '[rank1]:[E626 06:24:44.903 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operat'
            'ion timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, Timeout(ms)=600000) ran fo'
            'r 600020 milliseconds before timing out.\n'
            'frames: 300\n'
            'Fatal Python error: Aborted'
        ),
        'cause': 'collective-timeout',
        "words": 'SeqNum=808',
    },
    {
        'name': "peer's node lost its InfiniBand",
        'source': 'https://github.com/NVIDIA/nccl/issues/2076',
        "raises": ('torch.distributed.DistBackendError',
                   'NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exit'
                   'ed or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possib'
                   'ly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgr'
                   'essOpt: Call to recv from 172.0.0.9<33759> failed : Connection reset by peer'
                   ),
        'cause': 'peer-lost',
    },
    {
        'name': "request undeliverable on a provider's network",
        'source': 'https://github.com/NVIDIA/nccl/issues/1928',
        "raises": ('torch.distributed.DistBackendError',
                   'NCCL error in: /opt/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3763, remote '
                   'process exited or there was a network error, NCCL version 2.28.8\nncclRemoteError: A call f'
                   'ailed possibly due to a network error or a remote process exiting prematurely.\nLast error:'
                   '\nNET/OFI Request 0x7f14 completed with error. RC: 113. Error: 2 (UNDELIVERABLE).'
                   ),
        'cause': 'peer-lost',
    },
    {
        'name': 'InfiniBand retries used up, the process aborts',
        'source': 'https://github.com/tatsu-lab/stanford_alpaca/issues/207',
        'signal': 6,
        "prints": (
            '[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the asynchro'
            'nous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n'
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            '  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\n'
            'ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prem'
            'aturely.\n'
            'Last error: NET/IB : Got completion from peer 11.0.0.1<39138> with error 12, opcode 0, len 0, v'
            'endor err 129'
        ),
        'cause': 'peer-lost',
    },
    {
        'name': 'an internal error whose reason is a closed peer',
        'source': 'https://github.com/NVIDIA/nccl/issues/1514',
        "raises": ('torch.distributed.DistBackendError',
                   'NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, internal error, N'
                   'CCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\nNet : Connection '
                   'closed by remote peer user<50260>'
                   ),
        'cause': 'peer-lost',
    },
    {
        'name': "broken pipe in NCCL's own log, then a crash",
        'source': 'https://github.com/NVIDIA/nccl/issues/795',
        'signal': 6,
        "prints": (
            'node-22:183006:183220 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.200.84.247<58'
            '355> failed : Broken pipe\n'
            'node-22:183006:183220 [1] NCCL INFO misc/socket.cc:535 -> 6\n'
            'node-22:183006:183181 [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer n'
            'ode-21<47861>'
        ),
        'cause': 'peer-lost',
    },
    {
        'name': 'no interface for NCCL',
        'source': 'https://github.com/EvolvingLMMs-Lab/open-r1-multimodal/issues/7',
        "raises": ('torch.distributed.DistBackendError',
                   'NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2588, internal er'
                   'ror - please report this issue to the NCCL developers, NCCL version 2.21.5\nncclInternalErr'
                   'or: Internal check failed.\nLast error:\nBootstrap : no socket interface found'
                   ),
        'cause': 'program-failed',
    },
    {
        'name': 'the GPU has no memory left for NCCL',
        'source': 'https://github.com/NVIDIA/nccl/issues/1235',
        'signal': 6,
        "prints": (
            "ng30903:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
            'ng30903:3063028:3066152 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes\n'
            'ng30903:3063025:3066048 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by re'
            'mote peer ng30903-ib<51159>'
        ),
        'cause': 'gpu-out-of-memory',
    },
    {
        'name': 'uncorrectable memory error of a GPU',
        'source': 'https://github.com/sgl-project/sglang/issues/3204',
        "raises": ('builtins.RuntimeError',
                   'CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously'
                   ' reported at some other API call'
                   ),
        'cause': 'gpu-failed',
    },
    {
        'name': "a kernel's illegal memory access, found by the watchdog",
        'source': 'https://github.com/sgl-project/sglang/issues/6309',
        'signal': 6,
        "prints": (
            '[rank1]:[E519 05:58:22.475 ProcessGroupNCCL.cpp:1595] [PG ID 2 PG GUID 3 Rank 1] Process group '
            'watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered'
            '\n'
            'frames: 40'
        ),
        'cause': 'killed',
        "words": 'illegal memory access',
    },
    {
        'name': "the store's host is gone",
        'source': 'https://github.com/gpustack/gpustack/issues/6019',
        'signal': 6,
        "prints": (
            '[rank4]:[W810 23:02:42.934 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=102, addr'
            '=[node01]:50360, remote=[node01]:40027): Failed to recv, got 0 bytes. Connection was likely clo'
            'sed. Did the remote server shutdown or crash?\n'
            '[rank2]:[W810 23:02:42.715 ProcessGroupNCCL.cpp:1826] [PG ID 0 PG GUID 0 Rank 2] Failed to chec'
            'k the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with err'
            'or: Failed to recv, got 0 bytes.'
        ),
        'cause': 'peer-lost',
    },
    {
        'name': "the store's connection was reset",
        'source': 'https://github.com/sgl-project/sglang/issues/20859',
        'signal': 6,
        "prints": (
            '[rank12]:[W318 10:00:41.915 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=135, add'
            'r=[pod-1]:48750, remote=[pod-0]:20000): Connection reset by peer'
        ),
        'cause': 'peer-lost',
    },
    {
        'name': 'the watchdog itself is stuck in the driver',
        'source': 'https://github.com/pytorch/pytorch/issues/126544',
        'signal': 6,
        "prints": (
            '[rank3]:[F1108 10:00:00.000 ProcessGroupNCCL.cpp:1250] [PG 0 Rank 3] [PG 0 Rank 3] ProcessGroup'
            "NCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collec"
            'tives.'
        ),
        'cause': 'collective-timeout',
        "words": 'got stuck',
    },
    {
        'name': 'torch says that another rank reported the time-out',
        'source': 'https://github.com/NVIDIA/Megatron-LM/issues/1207',
        'signal': 6,
        "prints": (
            '[rank0]:[E1012 10:00:00.000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective opera'
            'tion timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) r'
            'an for 600013 milliseconds before timing out.'
        ),
        'cause': 'collective-timeout',
        "words": 'SeqNum=5',
    },
    {
        'name': "a kernel's illegal memory access as an exception",
        'source': 'https://github.com/vllm-project/vllm/issues/9308',
        "raises": ('torch.AcceleratorError',
                   'CUDA error: an illegal memory access was encountered'
                   ),
        'cause': 'program-failed',
    },
]  # fmt: skip
