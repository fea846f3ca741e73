{{/* Environment of the task. Its variables and Secrets win over those of its podTemplate, and these
over the chart's. */}}
{{- define "job-group.env" -}}
{{- $values := .root.Values }}
{{- $task := .task }}
{{- $nodes := $task.numNodes | default 1 | int }}
{{- $grace := include "job-group.grace" . | int64 }}
{{- $gpus := dig "accelerator" "count" 0 $task | int }}
{{- $primary := or (not $values.primaryTasks) (has .name $values.primaryTasks) }}
{{- /* A task of one node starts again in its own container; one of several nodes with the whole
group, by the JobSet. */}}
{{- $recovery := $task.recovery | default dict }}
{{- $endLast := and $primary (eq $values.onFailure "continue") (eq $values.layout "jobset")
  (or (eq $nodes 1) (not $task.recovery)) -}}
{{- $set := merge (include "job-group.runEnv" . | fromYaml) (dict
  "HOME" "/group/home"
  "NNODES" $nodes "NODE_RANK" .rank "NPROC_PER_NODE" (max 1 $gpus) "NUM_GPUS_PER_NODE" $gpus
  "MASTER_ADDR" (printf "%s-0.%s" .name (include "job-group.domain" .root))
  "MASTER_PORT" (include "job-group.contract" .root | fromJson).ports.rendezvous
  "SKYPILOT_JOBGROUP_NAME" $values.name
  "SKYPILOT_TASK_ID" (printf "%s_%s" .id .name)) }}
{{- $launcher := printf "--join-timeout=%d --grace-period=%d"
  ($values.barrier.timeoutSeconds | int64) (max 1 (sub $grace 10)) }}
{{- $settings := dict
  "GPU_CHARTS_HOST" (printf "%s-%s" .name .rank)
  "GPU_CHARTS_AGENT" (ternary "yes" "" $values.interConnection)
  "GPU_CHARTS_MAY_FAIL" (ternary "" "yes" (or $primary (eq $values.layout "jobs")))
  "GPU_CHARTS_END_LAST" (ternary "yes" "" $endLast)
  "GPU_CHARTS_DELAY_S" ($task.terminationDelaySeconds | default 0 | int64)
  "GPU_CHARTS_GRACE_S" (max 1 (sub $grace 3))
  "GPU_CHARTS_IN_PLACE" (ternary "yes" "" (eq $nodes 1))
  "GPU_CHARTS_MAX_RESTARTS" ($recovery.maxRestartsOnErrors | default 0 | int64)
  "GPU_CHARTS_LAUNCHER" (ternary $launcher "" (eq (include "job-group.launcher" .) "ddp-launch"))
  "GPU_CHARTS_RECOVER_CODES" (join " " ($recovery.recoverOnExitCodes | default list)) }}
{{- if eq (include "job-group.launcher" .) "ddp-launch" }}
{{- $settings = merge $settings (include "job-group.keyVariable" .root | fromYaml) }}
{{- end }}
{{- if and $values.kueue.queueName (eq $values.layout "jobs") }}
{{- $_ := set $settings "GPU_CHARTS_QUEUE" $values.kueue.queueName }}
{{- $_ := set $settings "GPU_CHARTS_HELD" (dict "valueFrom"
  (dict "fieldRef" (dict "fieldPath" "metadata.labels['kueue.x-k8s.io/managed']"))) }}
{{- end }}
{{- range $name, $value := $settings }}
{{- if ne (toString $value) "" }}{{ $_ := set $set $name $value }}{{ end }}
{{- end }}
{{- include "job-group.environment" (dict "root" .root "set" $set "env"
  (include "job-group.taskEnv" . | fromJson) "own" $task.podTemplate) }}
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
{{- if eq .root.Values.layout "jobset" }}
ATTEMPT: {valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}}
{{- else }}
ATTEMPT: "0"
{{- end }}
{{- end }}
