#!/bin/sh
# Prolog of Slurm: tests the GPUs of a job for at most 15 s. Slurm drains the node and requeues the
# job if a prolog fails, so it fails only on a proven fault (72); what could not be tested is in the
# log of slurmd. slurm.conf: Prolog=/etc/slurm/slurm-prolog.sh and PrologEpilogTimeout=60. The nodes
# need Python with torch, and pip install ./worker. Checked against the Prolog and Epilog Guide of
# Slurm 24.11.5; it was not run in Slurm.
PATH=/usr/local/bin:/usr/bin:/bin # Slurm sets none
[ -n "$SLURM_JOB_GPUS" ] || exit 0
CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS \
  NUM_GPUS_PER_NODE=$(echo "$SLURM_JOB_GPUS" | tr , '\n' | wc -l) \
  accept-node --level prolog --report-dir "/run/gpu-accept-$SLURM_JOB_ID"
[ $? -ne 72 ]
