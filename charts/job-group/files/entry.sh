#!/usr/bin/env bash
# Runs a task's setup, then its run, each as its own bash script. Process 1 of the container.
# Every process that the task started gets the SIGTERM of a pod that ends; bash as process 1 would swallow it.
set -um # m: each script is a process group
SKYPILOT_NODE_IPS=$(cat /group/state/node_ips)
export SKYPILOT_NODE_IPS
stopped=
trap 'stopped=1; kill -TERM -- "-$child" 2>/dev/null' TERM INT

for step in setup run; do
  [ -s "/group/scripts/$step" ] || continue
  bash "/group/scripts/$step" &
  child=$!
  wait "$child"
  code=$?
  if [ -n "$stopped" ]; then
    wait "$child" # the first wait ended with the signal, not with the script
    exit 143
  fi
  if [ "$code" -ne 0 ]; then
    echo "[FATAL] node=$NODE_RANK step=$step exit_code=$code" >&2
    exit "$code"
  fi
done
