"""etcd, API server, controller manager, scheduler and CoreDNS, as processes of the host."""

from __future__ import annotations

import time

from hack.deps import debian
from hack.local_cluster import pki, processes
from hack.local_cluster.settings import (
    API_SERVER,
    ETCD,
    FEATURES,
    HOST_IP,
    KUBECONFIG,
    LOGS,
    PKI,
    POD_NETWORK,
    SERVICE_NETWORK,
    STATE,
    at,
)
from hack.paths import BIN, ToolError, run

# Gang scheduling is a beta that is off by default, and its topologies are alpha.
GANG = FEATURES == "gang"
GATES = (
    ["--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true"] if GANG else []
)
SERVED = ["--runtime-config=scheduling.k8s.io/v1beta1=true"] if GANG else []
UNITS = ("etcd", "apiserver", "controller-manager", "scheduler", "coredns")

COREDNS = f"""\
.:53 {{
  bind {HOST_IP}
  errors
  ready {at(HOST_IP, 8181)}
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {STATE}/dns.conf gpu-charts
    pods insecure
    ttl 1
  }}
}}
"""


def up() -> None:
    # Not etcd's default port: the host may run an etcd. Certificates, because other users of the
    # host reach it, too.
    processes.start(
        "etcd", debian.program("etcd-server"),
        "--data-dir", STATE / "etcd",
        "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--client-cert-auth",
        "--cert-file", PKI / "etcd.crt", "--key-file", PKI / "etcd.key", "--trusted-ca-file", PKI / "etcd-ca.crt",
        "--listen-peer-urls", "https://127.0.0.1:12380", "--peer-client-cert-auth",
        "--peer-cert-file", PKI / "etcd.crt", "--peer-key-file", PKI / "etcd.key",
        "--peer-trusted-ca-file", PKI / "etcd-ca.crt",
        "--unsafe-no-fsync",
    )  # fmt: skip
    processes.start(
        "apiserver", BIN / "kube-apiserver",
        f"--etcd-servers={ETCD}", f"--etcd-cafile={PKI}/etcd-ca.crt",
        f"--etcd-certfile={PKI}/etcd.crt", f"--etcd-keyfile={PKI}/etcd.key",
        f"--bind-address={HOST_IP}", f"--advertise-address={HOST_IP}",
        f"--client-ca-file={PKI}/ca.crt",
        f"--tls-cert-file={PKI}/apiserver.crt", f"--tls-private-key-file={PKI}/apiserver.key",
        f"--kubelet-client-certificate={PKI}/kubelet-client.crt", f"--kubelet-client-key={PKI}/kubelet-client.key",
        f"--kubelet-certificate-authority={PKI}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        # lets Kueue's API server trust requests that pass through this one
        f"--requestheader-client-ca-file={PKI}/ca.crt", "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={PKI}/front-proxy.crt", f"--proxy-client-key-file={PKI}/front-proxy.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI}/service-account.pub",
        f"--service-account-signing-key-file={PKI}/service-account.key",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--allow-privileged",
        # webhooks are called at their pod, because the host does not run kube-proxy
        "--enable-aggregator-routing",
        *GATES, *SERVED,
    )  # fmt: skip
    pki.kubeconfig("admin", KUBECONFIG)
    wait_for_api()
    for unit in ("controller-manager", "scheduler", "dns", "proxy", "policy"):
        pki.kubeconfig(unit, STATE / f"{unit}.conf")
    processes.start(
        "controller-manager", BIN / "kube-controller-manager",
        f"--kubeconfig={STATE}/controller-manager.conf",
        f"--root-ca-file={PKI}/ca.crt",
        f"--service-account-private-key-file={PKI}/service-account.key",
        f"--cluster-signing-cert-file={PKI}/ca.crt", f"--cluster-signing-key-file={PKI}/ca.key",
        "--use-service-account-credentials",
        "--allocate-node-cidrs=false", f"--cluster-cidr={POD_NETWORK}",
        "--leader-elect=false",
        "--kube-api-qps=300", "--kube-api-burst=500",
        "--node-monitor-grace-period=20s",
        *GATES,
    )  # fmt: skip
    processes.start(
        "scheduler", BIN / "kube-scheduler",
        f"--kubeconfig={STATE}/scheduler.conf", "--leader-elect=false",
        *GATES,
    )  # fmt: skip
    (STATE / "Corefile").write_text(COREDNS)
    processes.start("coredns", BIN / "coredns", "-conf", STATE / "Corefile")


def kubectl(*args: str, **options) -> str:
    return run(BIN / "kubectl", "--kubeconfig", KUBECONFIG, *args, **options)


def wait_for_api(deadline_s: float = 60) -> None:
    end = time.monotonic() + deadline_s
    while True:
        try:
            kubectl("get", "--raw", "/readyz")
            return
        except ToolError:
            if not processes.alive("apiserver") or time.monotonic() > end:
                raise ToolError(
                    f"the API server at {API_SERVER} does not answer; see {LOGS}/apiserver.log"
                ) from None
            time.sleep(0.2)
