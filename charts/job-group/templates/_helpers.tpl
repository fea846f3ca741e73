{{/* Every rank of the group as a JSON list of {task, rank, host}, in the order of the task names. */}}
{{- define "job-group.ranks" -}}
{{- $ranks := list -}}
{{- range $name, $task := .Values.tasks -}}
{{- range $rank := until ($task.numNodes | default 1 | int) -}}
{{- $ranks = append $ranks (dict "task" $name "rank" $rank "host" (printf "%s-%d" $name $rank)) -}}
{{- end -}}
{{- end -}}
{{- toJson $ranks -}}
{{- end }}

{{/* Names of the tasks that must succeed, as a JSON list: those of primaryTasks, or all. */}}
{{- define "job-group.primaries" -}}
{{- .Values.primaryTasks | default (keys .Values.tasks | sortAlpha) | toJson -}}
{{- end }}

{{/*
Name of this version of the group: G and a hash of everything that Kubernetes will not let us change later. A changed
group is a new object, so neither `helm upgrade` nor Argo CD ever meets an immutable field.
*/}}
{{- define "job-group.id" -}}
{{- $all := list .Values.runId (include "job-group.scripts" .) (include "job-group.files" .) .Values.layout (include "job-group.kueue" .) -}}
{{- if eq .Values.layout "jobset" -}}
{{- $all = append $all (include "job-group.policies" .) -}}
{{- end -}}
{{- range $name, $_ := .Values.tasks -}}
{{- $first := dict "task" $name "rank" 0 "host" (printf "%s-0" $name) -}}
{{- $all = append $all (include "job-group.job" (dict "root" $ "id" "" "item" $first)) -}}
{{- end -}}
{{ .Values.name }}-{{ join "\n" $all | sha256sum | trunc 8 }}
{{- end }}

{{- define "job-group.domain" -}}
{{ .Values.name }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/*
Labels that tell this group's pods from all others, also from those of its earlier version that are still ending;
call with root and id.
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
{{- $paths := list -}}
{{- range $name, $task := .Values.tasks -}}
{{- if dig "podTemplate" "spec" "hostNetwork" false $task }}{{ $paths = append $paths (printf "tasks.%s.podTemplate.spec.hostNetwork" $name) }}{{ end -}}
{{- end -}}
{{ $paths | first | default "" }}
{{- end }}

{{/* Something if the pods exchange messages that a key can sign. */}}
{{- define "job-group.exchanges" -}}
{{ ternary "yes" "" .Values.interConnection }}
{{- end }}
