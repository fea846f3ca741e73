{{/* Copy of charts/shared/_nodetest.tpl. `preflight.nodeTest` if nodes are tested: report or gate.
YAML reads off as false. */}}
{{- define "CHART.nodeTest" -}}
{{- with .Values.preflight.nodeTest }}{{ ternary "" . (eq (toString .) "off") }}{{ end -}}
{{- end }}
