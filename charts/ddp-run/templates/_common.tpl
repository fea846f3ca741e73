{{/*
Templates that all charts share: charts/shared/_common.tpl. `make generate` writes a copy into each chart with the
chart's name in place of CHART, so that charts of different versions can be subcharts of one chart. (A library chart
would have to be fetched before `helm template` works.)
*/}}

{{/* Labels of an object. Never put them into a pod template of a Job: the chart's version would make it immutable. */}}
{{- define "ddp-run.labels" -}}
{{ include "ddp-run.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ddp-run.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Reference of the worker image: a digest wins over a tag. */}}
{{- define "ddp-run.image" -}}
{{- if not .Values.image.repository -}}
{{- fail (printf "\n\nimage.repository is empty: this chart needs the worker image.\nBuild it from the folder `worker` of this project, push it where your nodes can pull it, and set:\n\nimage:\n  repository: registry.example.com/gpu-worker\n  tag: %q\n" .Chart.AppVersion) -}}
{{- end -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Name of the release's objects, at most 40 characters, so that suffixes fit into 63. */}}
{{- define "ddp-run.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Refuse variables in `env` that only the pod itself can know; call with env, path and names. */}}
{{- define "ddp-run.refuseReserved" -}}
{{- $path := .path -}}
{{- $names := .names -}}
{{- range $name, $_ := .env -}}
{{- if has $name $names -}}
{{- fail (printf "\n\n%s.%s: the chart sets %s itself, from the pod; remove it. It sets: %s.\n" $path $name $name (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- end }}
