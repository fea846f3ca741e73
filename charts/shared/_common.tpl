{{/*
Templates that all charts share: charts/shared/_common.tpl. `make generate` writes a copy into each chart with the
chart's name in place of CHART, so that charts of different versions can be subcharts of one chart. (A library chart
would have to be fetched before `helm template` works.)
*/}}

{{/* Labels of an object. Never put them into a pod template of a Job: the chart's version would make it immutable. */}}
{{- define "CHART.labels" -}}
{{ include "CHART.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "CHART.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Reference of the worker image: a digest wins over a tag. */}}
{{- define "CHART.image" -}}
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
{{- define "CHART.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/*
Environment of a user's program: what the chart sets, with the user's variables over it. Call with root, set and env,
maps of NAME to text, or to a map such as {valueFrom: …}. Variables that have the value of another one follow it.
*/}}
{{- define "CHART.environment" -}}
{{- $contract := include "CHART.contract" .root | fromYaml -}}
{{- $all := dict "USER" $contract.user -}}
{{- range $variables := list .set .env -}}
{{- range $name, $value := $variables }}{{ $_ := set $all $name $value }}{{ end -}}
{{- end -}}
{{- range $name, $source := $contract.agreesWith -}}
{{- if and (hasKey $all $source) (not (hasKey $.env $name)) }}{{ $_ := set $all $name (get $all $source) }}{{ end -}}
{{- end -}}
{{- range $name, $value := $all }}
{{- if kindIs "map" $value }}
- {{ merge (dict "name" $name) $value | toJson }}
{{- else }}
{{- /* Kubernetes expands $(NAME) and halves $$ in a value, and users mean what they wrote. */}}
- {name: {{ quote $name }}, value: {{ $value | toString | replace "$" "$$" | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/*
Refuse names that a user's environment must not set, and print the value to set instead. Call with root, path, the
variables env, and where they belong to a task of a group, the path task.
*/}}
{{- define "CHART.refuseReserved" -}}
{{- $contract := include "CHART.contract" .root | fromYaml -}}
{{- $task := .task | default "" -}}
{{- range $name, $value := .env -}}
{{- if hasPrefix $contract.internalPrefix $name -}}
{{- fail (printf "\n\n%s.%s: names that begin with %s are internal to the chart. Choose another name.\n" $.path $name $contract.internalPrefix) -}}
{{- end -}}
{{- with get $contract.accepts $name -}}
{{- if and (kindIs "string" $value) (ne $value "…") (not (regexMatch (printf "^(%s)$" (index . 1)) $value)) -}}
{{- fail (printf "\n\n%s.%s: the value %q is wrong. Set %s.\n" $.path $name $value (index . 0)) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $contract.reserved $name -}}
{{- $instead := "" -}}
{{- range $depth, $key := index $contract.reserved $name | replace "TASK" $task | replace "ENV" (printf "%s.env" $task) | splitList "." | compact -}}
{{- $instead = printf "%s\n%s%s:" $instead (repeat (mul 2 $depth | int) " ") $key -}}
{{- end -}}
{{- fail (printf "\n\n%s.%s: the name %s is reserved, because the pod or another value decides it. Remove it%s\n" $.path $name $name (ternary (printf ", and set:\n%s %v" $instead $value) "." (ne $instead ""))) -}}
{{- end -}}
{{- end -}}
{{- end }}
