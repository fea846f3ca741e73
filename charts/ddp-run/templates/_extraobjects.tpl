{{/*
The user's objects as they are: no text in them is a template. Call with root and files, the templates of the chart with
objects, which an object of the user must not replace.
*/}}
{{- define "ddp-run.extraObjects" -}}
{{- if .root.Values.extraObjects }}
{{- $taken := list }}
{{- range $file := .files }}
{{- range regexSplit "(?m)^---$" (include (printf "%s/%s.yaml" $.root.Template.BasePath $file) $.root) -1 }}
{{- $taken = append $taken (include "ddp-run.identity" (dict "root" $.root "object" (fromYaml .))) }}
{{- end }}
{{- end }}
{{- range $index, $object := .root.Values.extraObjects }}
{{- $identity := include "ddp-run.identity" (dict "root" $.root "object" $object) }}
{{- if has $identity $taken }}
{{- fail (printf "\n\nextraObjects[%d]: the %s %s exists already, in the chart or in extraObjects. Choose another name.\n" $index $object.kind $object.metadata.name) }}
{{- end }}
{{- $taken = append $taken $identity }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}

{{/* Identity of an object, without the version of its API; call with root and object. */}}
{{- define "ddp-run.identity" -}}
{{- with .object.metadata -}}
{{ regexReplaceAll "/?[^/]*$" $.object.apiVersion "" }} {{ $.object.kind }} {{ .namespace | default $.root.Release.Namespace }} {{ .name }}
{{- end -}}
{{- end }}
