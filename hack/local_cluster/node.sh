#!/bin/sh
# Processes of one node; runs inside the namespaces that node.py created.
set -eu
hostname "$NODE"

# Paths that are fixed in the programs: each node gets a private one.
for path in /var/lib/kubelet /var/lib/cni /var/log; do
  mkdir -p "$path" "$FOLDER$path"
  mount --bind "$FOLDER$path" "$path"
done
mkdir -p "$FOLDER/no-numa"
mount --bind "$FOLDER/no-numa" /sys/devices/system/node
mount --bind "$FOLDER/cpu" /sys/devices/system/cpu
mount --bind "$FOLDER/meminfo" /proc/meminfo

containerd --config "$FOLDER/containerd.toml" &
until [ -S "$SOCKET" ] && ctr --address "$SOCKET" version >/dev/null 2>&1; do sleep 0.1; done
ctr --address "$SOCKET" --namespace k8s.io images import "$PAUSE_ARCHIVE"

kube-proxy --kubeconfig "$PROXY_CONFIG" --hostname-override "$NODE" --cluster-cidr "$POD_NETWORK" \
  --proxy-mode "$PROXY_MODE" --conntrack-max-per-core 0 --healthz-bind-address 127.0.0.1:10256 &
# It enforces NetworkPolicies, and nothing else. It ends while the kubelet has not registered the node.
[ "$PARTS" = demo ] || until kube-router --kubeconfig "$POLICY_CONFIG" --hostname-override "$NODE" \
  --run-firewall=true --run-router=false --run-service-proxy=false --run-loadbalancer=false \
  --service-cluster-ip-range "$SERVICE_NETWORK" --enable-ipv4="$IPV4" --enable-ipv6="$IPV6"; do sleep 0.5; done &
exec kubelet --config "$FOLDER/kubelet.json" --kubeconfig "$FOLDER/kubelet.conf" --hostname-override "$NODE" \
  --node-ip "$NODE_IP" --cert-dir "$FOLDER/certificates"
