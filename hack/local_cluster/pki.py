"""Certificates and kubeconfig files, made with openssl. They are removed with the cluster."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from hack.local_cluster.settings import API_SERVER, API_SERVICE_IP, HOST_IP, PKI, Node
from hack.paths import run

EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make(nodes: list[Node]) -> None:
    PKI.mkdir(parents=True, mode=0o700)
    # etcd trusts an authority of its own, because whoever can read etcd is more than an
    # administrator of the cluster.
    for authority in ("ca", "etcd-ca"):
        run("openssl", "req", "-x509", *EC_KEY, "-days", "30", "-subj", f"/CN=gpu-charts {authority}",
            "-keyout", PKI / f"{authority}.key", "-out", PKI / f"{authority}.crt")  # fmt: skip
    certificate("etcd", "/CN=etcd", "IP:127.0.0.1", "etcd-ca")
    names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    alternatives = [f"DNS:{name}" for name in names] + [
        f"IP:{ip}" for ip in (HOST_IP, API_SERVICE_IP, "127.0.0.1")
    ]
    certificate("apiserver", "/CN=kube-apiserver", ",".join(alternatives))
    certificate("kubelet-client", "/O=system:masters/CN=apiserver-kubelet")
    certificate("front-proxy", "/CN=front-proxy")
    certificate("admin", "/O=system:masters/CN=admin")
    certificate("controller-manager", "/CN=system:kube-controller-manager")
    certificate("scheduler", "/CN=system:kube-scheduler")
    certificate("proxy", "/CN=system:kube-proxy")
    certificate("dns", "/O=system:masters/CN=coredns")
    certificate("policy", "/O=system:masters/CN=kube-router")
    for node in nodes:
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        certificate(node.name, subject, f"DNS:{node.name},IP:{node.ip}")
    run("openssl", "genrsa", "-out", PKI / "service-account.key", "2048")
    run(
        "openssl",
        "rsa",
        "-in",
        PKI / "service-account.key",
        "-pubout",
        "-out",
        PKI / "service-account.pub",
    )


def certificate(name: str, subject: str, alternatives: str = "", authority: str = "ca") -> None:
    run(
        "openssl",
        "req",
        *EC_KEY,
        "-subj",
        subject,
        "-keyout",
        PKI / f"{name}.key",
        "-out",
        PKI / f"{name}.csr",
    )
    extensions = PKI / f"{name}.ext"
    extensions.write_text(f"subjectAltName={alternatives}\n" if alternatives else "")
    signer = ("-CA", PKI / f"{authority}.crt", "-CAkey", PKI / f"{authority}.key")
    run("openssl", "x509", "-req", "-in", PKI / f"{name}.csr", *signer, "-CAcreateserial", "-days", "30",
        "-extfile", extensions, "-out", PKI / f"{name}.crt")  # fmt: skip


def kubeconfig(name: str, path: Path) -> Path:
    """Write a kubeconfig for certificate `name`, readable by its owner only."""

    def embedded(file: str) -> str:
        return base64.b64encode((PKI / file).read_bytes()).decode()

    cluster = {"server": API_SERVER, "certificate-authority-data": embedded("ca.crt")}
    user = {
        "client-certificate-data": embedded(f"{name}.crt"),
        "client-key-data": embedded(f"{name}.key"),
    }
    context = {"cluster": "gpu-charts", "user": name}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gpu-charts", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "gpu-charts", "context": context}],
        "current-context": "gpu-charts",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path
