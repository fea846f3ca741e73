{{/* Variables that the chart sets, as a YAML map of NAME to text, or to the rest of an EnvVar; call
with root and id. */}}
{{- define "ddp-run.variables" -}}
{{- $values := .root.Values }}
{{- /* Pod 0, where the user's variable names no other host. */}}
{{- $service := printf "%s.%s.svc.%s" (include "ddp-run.fullname" .root) .root.Release.Namespace
  $values.clusterDomain }}
{{- $master := get $values.env "MASTER_ADDR" | default
  (printf "%s-0.%s" (include "ddp-run.hosts" .) $service) }}
{{- $index := "metadata.annotations['batch.kubernetes.io/job-completion-index']" }}
{{- if eq $values.workload "statefulset" }}
{{- $index = "metadata.labels['apps.kubernetes.io/pod-index']" }}
{{- end -}}
NNODES: {{ $values.nodes | int64 | quote }}
NODE_RANK: {valueFrom: {fieldRef: {fieldPath: {{ quote $index }}}}}
NPROC_PER_NODE: {{ $values.procsPerNode | default (max 1 $values.gpusPerNode) | int64 | quote }}
MASTER_ADDR: {{ $master | quote }}
MASTER_PORT: {{ include "ddp-run.port" .root | quote }}
NUM_GPUS_PER_NODE: {{ $values.gpusPerNode | int64 | quote }}
RUN_ID: {{ include "ddp-run.runName" .root | quote }}
HOME: /tmp
POD_NAME: {valueFrom: {fieldRef: {fieldPath: metadata.name}}}
POD_IP: {valueFrom: {fieldRef: {fieldPath: status.podIP}}}
NODE_NAME: {valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- if eq $values.workload "indexed-job" }}
ATTEMPT: {valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"}}}
GPU_CHARTS_ATTEMPTS_IGNORED:
  valueFrom:
    fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']"}
{{- else if eq $values.workload "jobset" }}
ATTEMPT: {valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}}
GPU_CHARTS_ATTEMPTS_IGNORED:
  valueFrom:
    fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']"}
{{- else }}
ATTEMPT: "0" # the launcher counts, in its own pod
{{- end }}
GPU_CHARTS_IMAGE: {{ $values.program.image | default (include "ddp-run.image" .root) | quote }}
{{- if eq $values.launcher "torchrun" }}
{{- $seconds := $values.timeouts.joinSeconds | int64 }}
PET_RDZV_ID: {value: "{{ .id }}-$(ATTEMPT)"} # Kubernetes puts in the number of the attempt
PET_MAX_RESTARTS: "0"
{{- if eq $values.rendezvous.backend "static" }}
PET_RDZV_CONF: timeout={{ $seconds }}
{{- else if eq $values.rendezvous.backend "c10d" }}
PET_RDZV_BACKEND: c10d
PET_RDZV_ENDPOINT: {{ printf "%s:%s" $master (include "ddp-run.port" .root) | quote }}
PET_RDZV_CONF: join_timeout={{ $seconds }},read_timeout={{ $seconds }}
{{- else }}
PET_RDZV_BACKEND: etcd-v2
PET_RDZV_ENDPOINT: {{ include "ddp-run.etcd" .root | quote }}
PET_RDZV_CONF: join_timeout={{ $seconds }},read_timeout={{ $seconds }}
{{- end }}
{{- with $values.network.interface }}
GLOO_SOCKET_IFNAME: {{ . | quote }}
NCCL_SOCKET_IFNAME: {{ printf "=%s" . | quote }}
{{- end }}
{{- end }}
{{ include "ddp-run.keyVariable" .root }}
{{- end }}

{{/* Port of the rendezvous. */}}
{{- define "ddp-run.port" -}}
{{ get .Values.env "MASTER_PORT" | default (.Values.rendezvous.port | int64) }}
{{- end }}
