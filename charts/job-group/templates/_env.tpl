{{/* The environment contract; the user's own variables and secrets win, also those that are empty. */}}
{{- define "job-group.env" -}}
{{- $values := .root.Values }}
{{- $task := index $values.tasks .item.task }}
{{- $nodes := $task.numNodes | default 1 | int }}
{{- $gpus := dig "accelerator" "count" 0 $task | int }}
{{- $procs := max 1 $gpus }}
{{- $master := printf "%s-0.%s" .item.task (include "job-group.domain" .root) }}
{{- $primary := or (not $values.primaryTasks) (has .item.task $values.primaryTasks) }}
{{- /* A task of one node starts again in its own container; one of several nodes with the whole group, by the JobSet. */}}
{{- $recovery := $task.recovery | default dict }}
{{- $park := and $primary (eq $values.onFailure "continue") (eq $values.layout "jobset") (or (eq $nodes 1) (not $task.recovery)) -}}
{{- include "job-group.runEnv" . }}
{{- $contract := dict
  "HOME" "/group/home"
  "NNODES" $nodes "NODE_RANK" .item.rank "NPROC_PER_NODE" $procs "MASTER_ADDR" $master "MASTER_PORT" 29500
  "PET_NNODES" $nodes "PET_NODE_RANK" .item.rank "PET_NPROC_PER_NODE" $procs
  "PET_MASTER_ADDR" $master "PET_MASTER_PORT" 29500
  "NUM_NODES" $nodes "NUM_GPUS_PER_NODE" $gpus "RANK" .item.rank
  "SKYPILOT_JOBGROUP_NAME" $values.name
  "SKYPILOT_NUM_NODES" $nodes "SKYPILOT_NODE_RANK" .item.rank "SKYPILOT_NUM_GPUS_PER_NODE" $gpus
  "SKYPILOT_TASK_ID" (printf "%s_%s" .id .item.task) }}
{{- $settings := dict
  "GROUP_HOST" .item.host
  "GROUP_AGENT" (ternary "yes" "" $values.interConnection)
  "GROUP_LOGS" (ternary "yes" "" (ne $values.logs.claimName ""))
  "GROUP_OPTIONAL" (ternary "" "yes" (or $primary (eq $values.layout "jobs")))
  "GROUP_PARK" (ternary "yes" "" $park)
  "GROUP_DELAY_S" ($task.terminationDelaySeconds | default 0 | int64)
  "GROUP_GRACE_S" (max 1 (sub ($values.terminationGracePeriodSeconds | int64) 3))
  "GROUP_IN_PLACE" (ternary "yes" "" (eq $nodes 1))
  "GROUP_MAX_RESTARTS" ($recovery.maxRestartsOnErrors | default 0 | int64)
  "GROUP_RECOVER_CODES" (join " " ($recovery.recoverOnExitCodes | default list)) }}
{{- range $name, $value := $task.env }}{{ $_ := set $contract $name $value }}{{ end }}
{{- range $name, $value := $settings }}{{ $_ := set $contract $name $value }}{{ end }}
{{- range $task.secrets }}{{ $_ := unset $contract . }}{{ end }}
{{- range $name, $value := $contract }}
{{- /* Kubernetes would expand $(NAME) and halve $$ in a value; users mean what they wrote. */}}
- {name: {{ quote $name }}, value: {{ $value | toString | replace "$" "$$" | quote }}}
{{- end }}
{{- range $task.secrets }}
- {name: {{ quote . }}, valueFrom: {secretKeyRef: {name: {{ quote $values.secretName }}, key: {{ quote . }}}}}
{{- end }}
{{- end }}

{{/* What the task and its agent both know of the pod and the run. */}}
{{- define "job-group.runEnv" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: RUN_ID, value: {{ .id | quote }}}
{{- if eq .root.Values.layout "jobset" }}
- {name: ATTEMPT, valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}}
{{- else }}
- {name: ATTEMPT, value: "0"}
{{- end }}
{{- end }}
