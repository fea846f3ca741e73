{{/* Copy of charts/shared/_helperimage.tpl. Reference of `helperImage`, which has Python: without a
repository `image` if that has one, else Python's public image. */}}
{{- define "gpu-accept.helperImage" -}}
{{- $other := .Values.image.repository | empty |
  ternary (include "gpu-accept.mirrored" (list . "docker.io/library/python:3.13-slim"))
  (include "gpu-accept.image" .) -}}
{{- include "gpu-accept.reference" (merge (dict "path" "helperImage" "version" "3.13-slim")
  .Values.helperImage) | default $other -}}
{{- end }}
