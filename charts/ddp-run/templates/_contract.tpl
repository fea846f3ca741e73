{{/* Generated from worker/src/gpuworker/runtime/contract.py by `make generate`. */}}
{{- define "ddp-run.contract" -}}
{"exitCodes": {"DONE": 0, "FAILED": 1, "USAGE": 2, "NAME_RESOLUTION": 64, "PORT": 65, "NODE_MISSING": 66, "NODES_DIFFER": 67, "INTERFACE": 68, "RENDEZVOUS": 69, "HANG": 70, "NODE_LOST": 71, "NODE_UNFIT": 72, "SAVED": 75, "STOPPED": 143},
"ports": {"rendezvous": 29500, "launcherOffset": 1, "groupAgent": 29499, "report": 8080},
"limits": {"name": 63, "podSets": 18},
"longestName": "%s-00000000-%s-%d-0",
"reservedMounts": ["/group", "/tmp", "/run/gpu-charts", "/dev/shm", "/dev", "/proc", "/sys"],
"programs": ["ddp-launch", "ddp-tests", "train", "train-framework"],
"keyFile": "/run/gpu-charts/key",
"mergeKeys": {"env": ["name"], "ports": ["containerPort", "protocol"], "volumeDevices": ["devicePath"], "volumeMounts": ["mountPath"], "ownerReferences": ["uid"], "containers": ["name"], "ephemeralContainers": ["name"], "evictionResponders": ["name"], "hostAliases": ["ip"], "imagePullSecrets": ["name"], "initContainers": ["name"], "resourceClaims": ["name"], "schedulingGates": ["name"], "topologySpreadConstraints": ["topologyKey", "whenUnsatisfiable"], "volumes": ["name"], "claims": ["name"]},
"internalPrefix": "GPU_CHARTS_",
"user": "worker",
"agreesWith": {"PET_NNODES": "NNODES", "PET_NODE_RANK": "NODE_RANK", "PET_NPROC_PER_NODE": "NPROC_PER_NODE", "PET_MASTER_ADDR": "MASTER_ADDR", "PET_MASTER_PORT": "MASTER_PORT", "NUM_NODES": "NNODES", "RANK": "NODE_RANK", "LOGNAME": "USER"},
"accepts": {"NPROC_PER_NODE": ["a whole number from 1 to 1024", "[1-9][0-9]{0,2}|10[01][0-9]|102[0-4]"], "MASTER_ADDR": ["a name or address", "\\S+"], "MASTER_PORT": ["a whole number from 1024 to 65534", "102[4-9]|10[3-9][0-9]|1[1-9][0-9]{2}|[2-9][0-9]{3}|[1-5][0-9]{4}|6([0-4][0-9]{3}|5([0-4][0-9]{2}|5([0-2][0-9]|3[0-4])))"]},
"reserved": {"NNODES": "nodes", "NODE_RANK": "", "PET_NNODES": "nodes", "PET_NODE_RANK": "", "PET_NPROC_PER_NODE": "ENV.NPROC_PER_NODE", "PET_MASTER_ADDR": "ENV.MASTER_ADDR", "PET_MASTER_PORT": "ENV.MASTER_PORT", "PET_RDZV_ID": "", "RUN_ID": "runName", "ATTEMPT": "", "POD_NAME": "", "POD_IP": "", "NODE_NAME": "", "NUM_NODES": "nodes", "NUM_GPUS_PER_NODE": "gpusPerNode", "RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": "", "GROUP_RANK": ""}}
{{- end }}
