{{/* Refuse rules of the NetworkPolicy that Kubernetes would refuse, and that fit the schema. */}}
{{- define "ddp-run.refuseInvalidRules" -}}
{{- range $field := list "ingress" "egress" -}}
{{- range $index, $rule := index $.Values.networkPolicy $field -}}
{{- $found := include "ddp-run.invalidSelectors" . | splitList "\n" | compact -}}
{{- range .ports -}}
{{- if and .endPort (or (not .port) (kindIs "string" .port)) -}}
{{- $found = append $found (printf "it has the endPort %v without a port number" .endPort) -}}
{{- else if and .endPort (lt (int .endPort) (int .port)) -}}
{{- $found = append $found (printf "it has the endPort %v, below its port %v" .endPort .port) -}}
{{- end -}}
{{- end -}}
{{- range concat (.from | default list) (.to | default list) -}}
{{- if not . }}{{ $found = append $found "it has a peer without a selector. One that allows all pods is {namespaceSelector: {}}" }}{{ end -}}
{{- if and (hasKey . "ipBlock") (gt (len .) 1) }}{{ $found = append $found "it has ipBlock beside a selector in one peer. Make them two" }}{{ end -}}
{{- end -}}
{{- with $found }}{{ fail (printf "\n\nnetworkPolicy.%s[%d]: Kubernetes would refuse the rule: %s.\n" $field $index (first .)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}
