{{/*
What keeps pods away that are not of the release (docs/security.md): a NetworkPolicy, and a key that
signs messages, from a Secret of the user. A chart defines CHART.hostNetwork, the path of the value
that puts pods into the network of their node, or nothing; and CHART.exchanges, which is nothing if
the pods exchange no messages that a key could sign.
*/}}

{{- define "CHART.keyVolume" -}}
{{- with .Values.authentication.secretName -}}
- name: key
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0444 # containers of the pod may run as different users
    items:
      - {key: {{ $.Values.authentication.secretKey | quote }}, path: {{ include "CHART.keyFile" $ |
        base }}}
{{- end }}
{{- end }}

{{- define "CHART.keyMount" -}}
{{- if .Values.authentication.secretName -}}
- {name: key, mountPath: {{ include "CHART.keyFile" . | dir }}, readOnly: true}
{{- end }}
{{- end }}

{{/* Variable that names the file of the key, as a YAML map. */}}
{{- define "CHART.keyVariable" -}}
{{- if .Values.authentication.secretName -}}
GPU_CHARTS_KEY_FILE: {{ include "CHART.keyFile" . }}
{{- end }}
{{- end }}

{{- define "CHART.keyFile" -}}
{{ (include "CHART.contract" . | fromJson).keyFile }}
{{- end }}

{{/* Something if the release has a NetworkPolicy. None would apply to pods in the network of their
node. */}}
{{- define "CHART.hasPolicy" -}}
{{- if and .Values.networkPolicy.enabled (not (include "CHART.hostNetwork" .)) }}yes{{ end -}}
{{- end }}

{{/* Rules of the NetworkPolicy; call with root and labels, which select the pods. */}}
{{- define "CHART.networkPolicySpec" -}}
podSelector:
  matchLabels:
    {{- .labels | nindent 4 }}
policyTypes: {{ .root.Values.networkPolicy.restrictEgress | ternary (list "Ingress" "Egress")
  (list "Ingress") | toJson }}
ingress:
  - from:
      - podSelector:
          matchLabels:
            {{- .labels | nindent 12 }}
  {{- with .root.Values.networkPolicy.ingress }}{{ toYaml . | nindent 2 }}{{ end }}
{{- if .root.Values.networkPolicy.restrictEgress }}
egress:
  - to:
      - podSelector:
          matchLabels:
            {{- .labels | nindent 12 }}
  - ports:
      {{- range list 53 5353 }}{{/* DNS pods of OpenShift listen on 5353. */}}
      - {port: {{ . }}, protocol: UDP}
      - {port: {{ . }}, protocol: TCP}
      {{- end }}
  {{- with .root.Values.networkPolicy.egress }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}

{{/* Refuse rules that would have no effect. */}}
{{- define "CHART.refuseNetworkPolicy" -}}
{{- $policy := .Values.networkPolicy -}}
{{- $name := $policy.ingress | empty | ternary "restrictEgress" "ingress" -}}
{{- $why := include "CHART.hostNetwork" . | default "networkPolicy.enabled" -}}
{{- $lost := and (or $policy.ingress $policy.restrictEgress) (not (include "CHART.hasPolicy" .)) -}}
{{- include "CHART.refuse" (list
  (list $lost (printf "networkPolicy.%s: there is no NetworkPolicy, because of %s. Remove one of them." $name $why))
  (list (and $policy.egress (not $policy.restrictEgress))
    "networkPolicy.egress: the rules have no effect without networkPolicy.restrictEgress.")) -}}
{{- end }}

{{/* Locks that the release lacks, for the notes. */}}
{{- define "CHART.missingLocks" -}}
{{- if not (include "CHART.hasPolicy" .) }}
No NetworkPolicy, because of {{ include "CHART.hostNetwork" . | default
  "networkPolicy.enabled" }}: other pods reach those of this release.
{{- end }}
{{- if and (include "CHART.exchanges" .) (not .Values.authentication.secretName) }}
No key (authentication.secretName): messages between the pods are not signed.
{{- end }}
{{- end }}

{{/* Credentials that an environment has as literals, for the notes; call with path and env. */}}
{{- define "CHART.literals" -}}
{{- $credential := "(^|_)(API_?)?(KEY|TOKEN|SECRET)$|PASSWORD" }}
{{- range $name, $value := .env }}
{{- if and (regexMatch $credential $name) (not (kindIs "map" $value)) }}
{{ $.path }}.{{ $name }} is readable in the release. Take a credential from a Secret.
{{- end }}
{{- end }}
{{- end }}
