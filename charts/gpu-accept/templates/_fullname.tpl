{{/* Name of the release's objects, at most 40 characters, so that suffixes fit into 63. A hash replaces what is cut. */}}
{{- define "gpu-accept.fullname" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- $own := contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- $name := .Values.fullnameOverride | default $own -}}
{{- if regexMatch "^[0-9]|[.]|^(y|n|yes|no|on|off|true|false|null)$" $name -}}
{{- fail (printf "\n\nThe Service of the release %s would have the name %s. A Service's name begins with a letter, has no dot, and is not a word such as on or null. Choose another name for the release:\n\nhelm install run-%s …\n" .Release.Name $name (.Release.Name | replace "." "-")) -}}
{{- end -}}
{{ gt (len $name) 40 | ternary (printf "%s-%s" ($name | trunc 31 | trimSuffix "-") ($name | sha256sum | trunc 8)) $name }}
{{- end }}

{{/* Labels of the pods of the nodes. */}}
{{- define "gpu-accept.nodeLabels" -}}
{{ include "gpu-accept.selectorLabels" . }}
app.kubernetes.io/component: node
{{- end }}
