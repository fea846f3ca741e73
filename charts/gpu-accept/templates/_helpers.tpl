{{/* The acceptance: spec of its Job, arguments and resources of the test, the page's container. */}}

{{- define "gpu-accept.fleetLabels" -}}
{{ include "gpu-accept.selectorLabels" . }}
app.kubernetes.io/component: fleet
{{- end }}

{{/* Hash of what the user chose for the pods of this run. */}}
{{- define "gpu-accept.runHash" -}}
{{- $never := list "activeDeadlineSeconds" "kueue.priorityClass" "ttlSecondsAfterFinished"
  "fleet.claimName" "fleet.listPods" "fleet.podTemplate" "nodeActionsDryRun" -}}
{{- if eq .Values.workload "daemonset" }}{{/* Its pods stay when these change. */}}
{{- $never = concat $never (list "nodes" "nodeActions") }}
{{- end -}}
{{- $gpus := eq .Values.device "cuda" -}}
{{- $world := .Values.world.enabled -}}
{{- $acts := dict "burnInSeconds" (eq .Values.level "burn-in") "gpusPerNode" $gpus "gpuResourceName"
  $gpus
  "fleet.deadlineSeconds" $world "world.args" $world "world.checks" $world -}}
{{ include "gpu-accept.hash" (dict "root" . "never" $never "acts" $acts) }}
{{- end }}

{{/* Name of the Job of this run. */}}
{{- define "gpu-accept.job" -}}
{{ include "gpu-accept.fullname" . }}-{{ include "gpu-accept.runHash" . }}
{{- end }}

{{/* Id of this run: the page takes no report of pods that an upgrade has replaced. */}}
{{- define "gpu-accept.runId" -}}
{{ .Values.runId }}-{{ include "gpu-accept.runHash" . }}
{{- end }}

{{/* Something if the page lists the pods of the release. */}}
{{- define "gpu-accept.listsPods" -}}
{{ if or .Values.fleet.listPods (ne .Values.nodeActions "none") }}yes{{ end }}
{{- end }}

{{- define "gpu-accept.jobSpec" -}}
{{- $nodes := include "gpu-accept.nodeCount" . -}}
{{- if .Values.patrol.schedule }}{{/* a share */}}
{{- $nodes = div (mul $nodes .Values.patrol.percent) 100 | max 1 }}
{{- end -}}
completionMode: Indexed
completions: {{ $nodes }}
parallelism: {{ $nodes }}
{{- with .Values.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ . | int64 }}
{{- end }}
# A node that failed is not tested again, and the others are tested to the end.
backoffLimitPerIndex: 0
maxFailedIndexes: {{ $nodes }}
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    # Replace a pod that was evicted, deleted, or lost with its node: it proves nothing about the
    # node.
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
template:
  {{- include "gpu-accept.podTemplate" . | nindent 2 }}
{{- end }}

{{/* Seconds until the fleet must have passed. */}}
{{- define "gpu-accept.deadline" -}}
{{ add .Values.fleet.deadlineSeconds (eq .Values.level "burn-in" | ternary .Values.burnInSeconds
  0) }}
{{- end }}

{{/* GPUs of a pod; a rehearsal takes none. */}}
{{- define "gpu-accept.gpus" -}}
{{ eq .Values.device "cuda" | ternary (.Values.gpusPerNode | int) 0 }}
{{- end }}

{{/* What every node tests, and what the fleet report requires of every node. */}}
{{- define "gpu-accept.requested" -}}
- --device={{ .Values.device }}
{{- with include "gpu-accept.gpus" . | int }}
- --gpus={{ . }}
{{- end }}
- --level={{ .Values.level }}
{{- range .Values.checks }}
- --check={{ . }}
{{- end }}
{{- range $key, $number := .Values.limits }}
- --limit={{ $key }}={{ $number | toJson }}
{{- end }}
{{- with .Values.inject }}
- --inject={{ . }}
{{- end }}
{{- end }}

{{/* The volumes that it tests: claims, or what podTemplate mounts at their paths. */}}
{{- define "gpu-accept.volumes" -}}
{{- $mounted := list }}
{{- range dig "spec" "initContainers" list .Values.podTemplate }}
{{- range .volumeMounts }}{{ $mounted = append $mounted (clean .mountPath) }}{{ end }}
{{- end }}
{{- range $name, $path := dict "outputs" "/out" "datasets" "/data" }}
{{- if or (get $.Values.volumes $name).claimName (has $path $mounted) }}
- --volume={{ $name }}={{ $path }}
{{- end }}
{{- end }}
{{- end }}

{{/* Arguments of the tests of a node. */}}
{{- define "gpu-accept.args" -}}
- --exit-zero
{{ include "gpu-accept.requested" . }}
{{- if eq .Values.level "burn-in" }}
- --burn-in-seconds={{ .Values.burnInSeconds | int64 }}
{{- end }}
{{- range $what, $version := .Values.expect }}
- {{ printf "--expect=%s=%s" $what $version | replace "$" "$$" | quote }}
{{- end }}
{{- include "gpu-accept.volumes" . }}
{{- if not (kindIs "invalid" .Values.checkTimeoutSeconds) }}
- --check-timeout={{ .Values.checkTimeoutSeconds | int64 }}
{{- end }}
- --report-dir=/reports
- --run-id={{ include "gpu-accept.runId" . }}
{{- end }}

{{/* Image, variables and devices of a container that tests; call with root and set, more variables
of the chart. */}}
{{- define "gpu-accept.tester" -}}
{{- $values := .root.Values -}}
image: {{ include "gpu-accept.image" .root | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
env:
  {{- $set := merge .set (include "gpu-accept.variables" .root | fromYaml) }}
  {{- include "gpu-accept.environment" (dict "root" .root "set" $set "env" $values.env) | trim |
    nindent 2 }}
{{- $devices := dict $values.gpuResourceName (list "gpusPerNode"
  (include "gpu-accept.gpus" .root)) }}
{{- with include "gpu-accept.resources" (dict "resources" $values.resources "devices" $devices
  "path" "resources") }}
resources:
  {{- . | nindent 2 }}
{{- end }}
{{ include "gpu-accept.container" .root }}
{{- end }}

{{/* Image and other fields of a container of the fleet report, or of `helm test`. */}}
{{- define "gpu-accept.fleetContainer" -}}
image: {{ include "gpu-accept.helperImage" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{ include "gpu-accept.container" . }}
{{- end }}

{{/* Environment of a container that has no other variables than that of the key. */}}
{{- define "gpu-accept.keyEnv" -}}
{{- range $name, $value := include "gpu-accept.keyVariable" . | fromYaml -}}
env:
  - {name: {{ $name }}, value: {{ $value }}}
{{- end }}
{{- end }}

{{/* Something if the pods exchange messages that a key can sign. */}}
{{- define "gpu-accept.exchanges" -}}
yes
{{- end }}
