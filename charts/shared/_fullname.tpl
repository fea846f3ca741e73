{{/* Name of the release's objects, at most 40 characters, so that suffixes fit into 63. A hash
replaces what is cut. */}}
{{- define "CHART.fullname" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- $own := contains $chart .Release.Name | ternary .Release.Name
  (printf "%s-%s" .Release.Name $chart) -}}
{{- $name := .Values.fullnameOverride | default $own -}}
{{- if regexMatch "^[0-9]|[^-a-z0-9]|^(y|n|yes|no|on|off|true|false|null)$" $name -}}
{{- fail (printf "\n\n%s: no name for a Service. Choose one of a-z, 0-9 and '-' that begins with a letter.\n" $name) -}}
{{- end -}}
{{ gt (len $name) 40 | ternary (printf "%s-%s" ($name | trunc 31 | trimSuffix "-")
  ($name | sha256sum | trunc 8)) $name }}
{{- end }}

{{/* Path of the value that puts pods into the network of their node, or nothing. */}}
{{- define "CHART.hostNetwork" -}}
{{- if dig "spec" "hostNetwork" false .Values.podTemplate }}podTemplate.spec.hostNetwork{{ end -}}
{{- end }}

{{/* Labels of the pods of the nodes. */}}
{{- define "CHART.nodeLabels" -}}
{{ include "CHART.selectorLabels" . }}
app.kubernetes.io/component: node
{{- end }}
