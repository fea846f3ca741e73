{{/* The environment contract; call with root and id. */}}
{{- define "ddp-run.env" -}}
{{- $values := .root.Values }}
{{- $nodes := $values.nodes | int64 }}
{{- $gpus := $values.gpusPerNode | int64 }}
{{- $procs := $values.procsPerNode | default (max 1 $gpus) | int64 }}
{{- $service := printf "%s.%s.svc.%s" (include "ddp-run.fullname" .root) .root.Release.Namespace $values.clusterDomain }}
{{- $master := printf "%s-0.%s" (include "ddp-run.hosts" .) $service }}
{{- $port := $values.rendezvous.port | int64 }}
{{- $index := "metadata.annotations['batch.kubernetes.io/job-completion-index']" }}
{{- if eq $values.workload "statefulset" }}{{ $index = "metadata.labels['apps.kubernetes.io/pod-index']" }}{{ end }}
{{- range $name := list "NODE_RANK" "PET_NODE_RANK" "RANK" }}
- {name: {{ $name }}, valueFrom: {fieldRef: {fieldPath: {{ $index | quote }}}}}
{{- end }}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- if eq $values.workload "indexed-job" }}
- {name: ATTEMPT, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"}}}
- {name: ATTEMPTS_IGNORED, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']"}}}
{{- else if eq $values.workload "jobset" }}
- {name: ATTEMPT, valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}}
{{- else }}
- {name: ATTEMPT, value: "0"} # the launcher counts, in its own pod
{{- end }}
{{- with $values.huggingFace.secretName }}
{{- range $name := list "HF_TOKEN" "HUGGING_FACE_HUB_TOKEN" "HUGGINGFACE_HUB_TOKEN" }}
- {name: {{ $name }}, valueFrom: {secretKeyRef: {name: {{ $values.huggingFace.secretName | quote }}, key: {{ $values.huggingFace.secretKey | quote }}}}}
{{- end }}
{{- end }}
{{- include "ddp-run.trackerSecrets" (dict "values" $values) }}
{{- $contract := dict
  "NNODES" $nodes "NPROC_PER_NODE" $procs "MASTER_ADDR" $master "MASTER_PORT" $port
  "PET_NNODES" $nodes "PET_NPROC_PER_NODE" $procs "PET_MASTER_ADDR" $master "PET_MASTER_PORT" $port
  "NUM_NODES" $nodes "NUM_GPUS_PER_NODE" $gpus "RUN_ID" .id
  "IMAGE" ($values.program.image | default (include "ddp-run.image" .root)) "HOME" "/tmp" }}
{{- if eq $values.launcher "torchrun" }}
{{- $contract = merge (include "ddp-run.torchrun" (dict "values" $values "id" .id "master" $master "etcd" (include "ddp-run.etcd" .root)) | fromYaml) $contract }}
{{- /* Not escaped: Kubernetes puts in the number of the attempt. */}}
- {name: PET_RDZV_ID, value: "{{ .id }}-$(ATTEMPT)"}
{{- end }}
{{- if $values.huggingFace.offline }}
{{- $contract = merge (dict "HF_HUB_OFFLINE" "1" "TRANSFORMERS_OFFLINE" "1" "HF_DATASETS_OFFLINE" "1") $contract }}
{{- end }}
{{- $contract = merge (include "ddp-run.trackers" (dict "values" $values "id" .id) | fromYaml) $contract }}
{{- if eq $values.network.nccl "tcp" }}
{{- $contract = merge (dict "NCCL_NET" "Socket" "NCCL_IB_DISABLE" "1") $contract }}
{{- else if eq $values.network.nccl "ib" }}
{{- $contract = merge (dict "NCCL_NET" "IB" "NCCL_IB_DISABLE" "0") $contract }}
{{- end }}
{{- range $name, $value := merge (deepCopy $values.env) $contract }}
{{- /* Kubernetes would expand $(NAME) and halve $$ in a value; users mean what they wrote. */}}
- {name: {{ $name }}, value: {{ $value | toString | replace "$" "$$" | quote }}}
{{- end }}
{{- end }}

{{/* What a bare torchrun reads beside the contract; call with values, id, master and etcd. */}}
{{- define "ddp-run.torchrun" -}}
{{- $seconds := .values.rendezvous.timeoutSeconds | int64 }}
{{- $endpoint := printf "%s:%d" .master (.values.rendezvous.port | int64) }}
PET_MAX_RESTARTS: "0"
{{- if eq .values.rendezvous.backend "static" }}
PET_RDZV_CONF: timeout={{ $seconds }}
{{- else if eq .values.rendezvous.backend "c10d" }}
PET_RDZV_BACKEND: c10d
PET_RDZV_ENDPOINT: {{ $endpoint | quote }}
PET_RDZV_CONF: join_timeout={{ $seconds }},read_timeout={{ $seconds }}
{{- else }}
PET_RDZV_BACKEND: etcd-v2
PET_RDZV_ENDPOINT: {{ .etcd | quote }}
PET_RDZV_CONF: join_timeout={{ $seconds }},read_timeout={{ $seconds }}
{{- end }}
{{- with .values.network.interface }}
GLOO_SOCKET_IFNAME: {{ . | quote }}
NCCL_SOCKET_IFNAME: {{ printf "=%s" . | quote }}
{{- end }}
{{- end }}

{{/* Keys of the trackers, from Secrets; call with values. */}}
{{- define "ddp-run.trackerSecrets" -}}
{{- $values := .values }}
{{- if $values.tracking.pluto.secretName }}
{{- range $name := list "PLUTO_API_KEY" "PLUTO_API_TOKEN" }}
- {name: {{ $name }}, valueFrom: {secretKeyRef: {name: {{ $values.tracking.pluto.secretName | quote }}, key: {{ $values.tracking.pluto.secretKey | quote }}}}}
{{- end }}
{{- end }}
{{- if $values.tracking.mlflow.secretName }}
{{- range $name := list "MLFLOW_TRACKING_USERNAME" "MLFLOW_TRACKING_PASSWORD" "MLFLOW_TRACKING_TOKEN" }}
- {name: {{ $name }}, valueFrom: {secretKeyRef: {name: {{ $values.tracking.mlflow.secretName | quote }}, key: {{ $name }}, optional: true}}}
{{- end }}
{{- end }}
{{- end }}

{{/* What the trackers' clients read; call with values and id. */}}
{{- define "ddp-run.trackers" -}}
{{- $values := .values }}
{{- if or $values.tracking.pluto.secretName $values.tracking.mlflow.uri }}
MAX_RESTARTS: {{ $values.maxRestarts | int64 | quote }} # only the last attempt marks the run as failed
TRACKERS_REQUIRED: {{ $values.tracking.required | quote }}
{{- end }}
{{- with $values.tracking.pluto }}
{{- if .secretName }}
PLUTO_RUN_ID: {{ .runId | default $.id | quote }}
PLUTO_DIR: /tmp/pluto # its database must be on local disk
PLUTO_DISABLE_TELEMETRY: "1"
{{- with .project }}
PLUTO_PROJECT: {{ . | quote }}
{{- end }}
{{- with .url }}
PLUTO_URL_APP: {{ . | quote }}
PLUTO_URL_API: {{ . | quote }}
PLUTO_URL_INGEST: {{ . | quote }}
PLUTO_URL_PY: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with $values.tracking.mlflow.uri }}
MLFLOW_TRACKING_URI: {{ . | quote }}
MLFLOW_DISABLE_TELEMETRY: "true"
{{- end }}
{{- with $values.tracking.mlflow.experiment }}
MLFLOW_EXPERIMENT_NAME: {{ . | quote }}
{{- end }}
{{- end }}
