{{/* Generated from the checks by `make generate`. */}}
{{- define "gpu-accept.names" -}}
{"limits": ["all_gather_busbw", "all_reduce_busbw", "all_to_all_busbw", "broadcast_busbw", "busbw_fabric", "busbw_node", "gemm_bf16", "gemm_fp16", "gemm_fp32", "gemm_fp8", "gemm_tf32", "gradient_error", "host_compute", "host_link", "host_memory", "latest_arrival", "link_d2h", "link_h2d", "link_peer", "loss_drop", "memory_copy", "memory_tested", "memory_triad", "mfu", "peer_link", "reduce_scatter_busbw", "repeats", "send_recv_busbw", "slowest_compute", "storage_read", "storage_read_p99", "storage_write", "tokens_per_s"], "expect": ["torch", "cuda", "nccl", "cudnn", "driver", "python", "kernel"]}
{{- end }}
