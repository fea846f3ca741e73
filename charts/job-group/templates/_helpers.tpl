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

{{/*
Name of this version of the group: G and a hash of everything that Kubernetes will not let us change later. A changed
group is a new object, so neither `helm upgrade` nor Argo CD ever meets an immutable field.
*/}}
{{- define "job-group.id" -}}
{{- $all := list (include "job-group.scripts" .) .Values.layout -}}
{{- range include "job-group.ranks" . | fromJsonArray -}}
{{- $all = append $all (include "job-group.job" (dict "root" $ "id" "" "item" .)) -}}
{{- end -}}
{{ .Values.name }}-{{ join "\n" $all | sha256sum | trunc 8 }}
{{- end }}

{{- define "job-group.domain" -}}
{{ .Values.name }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* What users wrote goes into files, never into a command line. */}}
{{- define "job-group.scripts" -}}
{{- $files := dict "entry.sh" (.Files.Get "files/entry.sh") -}}
{{- range $name, $task := .Values.tasks -}}
{{- $_ := set $files (printf "%s.setup" $name) ($task.setup | default "") -}}
{{- $_ := set $files (printf "%s.run" $name) ($task.run | default "") -}}
{{- end -}}
{{- toYaml $files -}}
{{- end }}

{{- define "job-group.selectorLabels" -}}
{{ include "common.selectorLabels" . }}
job-group/name: {{ .Values.name }}
{{- end }}
