{{/* Copy of charts/shared/_helperimage.tpl. Reference of `helperImage`, which has Python: without a
repository `image` if that has one, else Python's public image. */}}
{{- define "CHART.helperImage" -}}
{{- $other := .Values.image.repository | empty |
  ternary (include "CHART.mirrored" (list . "docker.io/library/python:3.13-slim"))
  (include "CHART.image" .) -}}
{{- include "CHART.reference" (merge (dict "path" "helperImage" "version" "3.13-slim")
  .Values.helperImage) | default $other -}}
{{- end }}
