{{/* Environment of the task. Its variables and Secrets win over those of its podTemplate, and these
over the chart's. */}}
{{- define "job-group.env" -}}
{{- include "job-group.environment" (dict "root" .root "own" .task.podTemplate
  "set" (include "job-group.variables" . | fromYaml)
  "env" (include "job-group.taskEnv" . | fromJson)) }}
{{- end }}

{{/* Variables that the chart sets in a task, as a YAML map. */}}
{{- define "job-group.variables" -}}
{{- $values := .root.Values }}
{{- $task := .task }}
{{- $nodes := $task.numNodes | default 1 | int }}
{{- $grace := include "job-group.grace" . | int64 }}
{{- $gpus := dig "accelerator" "count" 0 $task | int }}
{{- $jobset := eq $values.workload "jobset" }}
{{- $primary := or (not $values.primaryTasks) (has .name $values.primaryTasks) }}
{{- $recovery := $task.recovery | default dict -}}
{{ include "job-group.runEnv" . }}
HOME: /group/home
NNODES: {{ $nodes | quote }}
NODE_RANK: {{ .rank | quote }}
NPROC_PER_NODE: {{ max 1 $gpus | quote }}
NUM_GPUS_PER_NODE: {{ $gpus | quote }}
MASTER_ADDR: {{ .name }}-0.{{ include "job-group.domain" .root }}
MASTER_PORT: {{ (include "job-group.contract" .root | fromJson).ports.rendezvous | quote }}
SKYPILOT_JOBGROUP_NAME: {{ $values.name | quote }}
SKYPILOT_TASK_ID: {{ .id }}_{{ .name }}
GPU_CHARTS_HOST: {{ .name }}-{{ .rank }}
GPU_CHARTS_DELAY_S: {{ $task.terminationDelaySeconds | default 0 | int64 | quote }}
GPU_CHARTS_GRACE_S: {{ max 1 (sub $grace 3) | quote }}
GPU_CHARTS_MAX_RESTARTS: {{ $recovery.maxRestartsOnErrors | default 0 | int64 | quote }}
{{- with $recovery.recoverOnExitCodes }}
GPU_CHARTS_RECOVER_CODES: {{ join " " . | quote }}
{{- end }}
{{- if $values.interConnection }}
GPU_CHARTS_AGENT: "yes"
{{- end }}
{{- if and $jobset (not $primary) }}
GPU_CHARTS_MAY_FAIL: "yes"
{{- end }}
{{- if eq $nodes 1 }}
# It starts again in its own container; a task of several nodes with the group, by the JobSet.
GPU_CHARTS_IN_PLACE: "yes"
{{- end }}
{{- $alone := or (eq $nodes 1) (not $task.recovery) }}
{{- if and $primary $jobset $alone (eq $values.onFailure "continue") }}
GPU_CHARTS_END_LAST: "yes"
{{- end }}
{{- if eq (include "job-group.launcher" .) "ddp-launch" }}
GPU_CHARTS_LAUNCHER: --join-timeout={{ int64 $values.timeouts.joinSeconds }} --grace-period={{
  max 1 (sub $grace 10) }}
{{ include "job-group.keyVariable" .root }}
{{- end }}
{{- with include "job-group.testOfTask" . }}
GPU_CHARTS_NODE_TEST: {{ . }}
{{- end }}
{{- if and $values.kueue.queueName (not $jobset) }}
GPU_CHARTS_QUEUE: {{ $values.kueue.queueName | quote }}
GPU_CHARTS_HELD: {valueFrom: {fieldRef: {fieldPath: "metadata.labels['kueue.x-k8s.io/managed']"}}}
{{- end }}
{{- end }}

{{/* The task's own variables and those of its Secrets; JSON, which any text survives. */}}
{{- define "job-group.taskEnv" -}}
{{- $env := deepCopy (.task.env | default dict) }}
{{- range .task.secrets }}
{{- $_ := set $env . (dict "valueFrom" (dict "secretKeyRef"
  (dict "name" $.root.Values.secretName "key" .))) }}
{{- end }}
{{- toJson $env }}
{{- end }}

{{/* Variables of the pod and the run, for the task and its agent; a YAML map. */}}
{{- define "job-group.runEnv" -}}
POD_NAME: {valueFrom: {fieldRef: {fieldPath: metadata.name}}}
POD_IP: {valueFrom: {fieldRef: {fieldPath: status.podIP}}}
NODE_NAME: {valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
RUN_ID: {{ .id | quote }}
{{- if eq .root.Values.workload "jobset" }}
ATTEMPT: {valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}}
{{- else }}
ATTEMPT: "0"
{{- end }}
{{- end }}
