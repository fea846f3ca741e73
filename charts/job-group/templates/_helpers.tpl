{{/* The group: its names and labels, how many ranks it has. */}}

{{/*
Stands for the rank in what is rendered once per task, because its ranks differ in nothing else. No
text of the values has it, because their hash is in the id. Call with id.
*/}}
{{- define "job-group.anyRank" -}}
@{{ .id }}@
{{- end }}

{{/*
Name of this version of the group, without the values that decide nothing about its Jobs. An empty
field of a task is none. `helm
lint` renders also values without a name, which the validations refuse.
*/}}
{{- define "job-group.id" -}}
{{- $jobset := eq .Values.workload "jobset" -}}
{{- $gpus := false -}}
{{- range $task := .Values.tasks }}
{{- if .accelerator }}{{ $gpus = true }}{{ end -}}
{{- range $field, $value := . }}{{ if not $value }}{{ $_ := unset $task $field }}{{ end }}{{ end -}}
{{- end -}}
{{- $acts := dict
  "accelerators.nodeLabel" $gpus
  "gpuResourceName" $gpus
  "activeDeadlineSeconds" $jobset
  "preflight.nodeTest" (include "job-group.nodeTest" .)
  "kueue.priorityClass" (not $jobset) -}}
{{- $never := list "accelerators.types" "ttlSecondsAfterFinished" -}}
{{ .Values.name | default "group" }}-{{ include "job-group.hash"
  (dict "root" . "never" $never "acts" $acts) }}
{{- end }}

{{- define "job-group.fullname" -}}
{{ .Values.name | default "group" }}
{{- end }}

{{- define "job-group.domain" -}}
{{ .Values.name }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/*
Labels that tell this group's pods from all others, also from those of its earlier version that are
still ending; call with root and id.
*/}}
{{- define "job-group.podLabels" -}}
{{ include "job-group.selectorLabels" .root }}
job-group/name: {{ .root.Values.name | quote }}
job-group/id: {{ .id | quote }}
{{- end }}

{{/* How many ranks the group has. */}}
{{- define "job-group.size" -}}
{{- $size := 0 -}}
{{- range .Values.tasks -}}
{{- $size = add $size (.numNodes | default 1 | int) -}}
{{- end -}}
{{- $size -}}
{{- end }}

{{/* Path of the value that puts pods into the network of their node, or nothing. */}}
{{- define "job-group.hostNetwork" -}}
{{- $paths := dig "spec" "hostNetwork" false .Values.podTemplate |
  ternary (list "podTemplate.spec.hostNetwork") list -}}
{{- range $name, $task := .Values.tasks -}}
{{- if dig "podTemplate" "spec" "hostNetwork" false $task }}
{{- $paths = append $paths (printf "tasks.%s.podTemplate.spec.hostNetwork" $name) }}
{{- end -}}
{{- end -}}
{{ $paths | first | default "" }}
{{- end }}

{{/* Something if the pods exchange messages that a key can sign. */}}
{{- define "job-group.exchanges" -}}
{{ ternary "yes" "" .Values.interConnection }}
{{- end }}
