"""A real Kubernetes on one Linux machine, without Docker.

Each node is a network namespace with its own containerd, kubelet and kube-proxy; the control plane
and CoreDNS run on the host. Every process is in the cgroup `gpu-charts`, so `down` finds all of
them, also after a crash.

  python3 -m hack.local_cluster up | down | status | load IMAGE.tar
"""
