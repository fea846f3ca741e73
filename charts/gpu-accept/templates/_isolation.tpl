{{/*
What keeps pods away that are not of the release (docs/security.md): a NetworkPolicy, and a key that signs messages. A chart
defines CHART.hostNetwork, the path of the value that puts pods into the network of their node, or nothing; and
CHART.exchanges, which is nothing if the pods exchange no messages that a key could sign.
*/}}

{{- define "gpu-accept.keyVolume" -}}
{{- with .Values.authentication.secretName -}}
- name: key
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0444 # containers of the pod may run as different users
    items:
      - {key: {{ $.Values.authentication.secretKey | quote }}, path: {{ include "gpu-accept.keyFile" $ | base }}}
{{- end }}
{{- end }}

{{- define "gpu-accept.keyMount" -}}
{{- if .Values.authentication.secretName -}}
- {name: key, mountPath: {{ include "gpu-accept.keyFile" . | dir }}, readOnly: true}
{{- end }}
{{- end }}

{{/* Variable that names the file of the key, as a YAML map. */}}
{{- define "gpu-accept.keyVariable" -}}
{{- if .Values.authentication.secretName -}}
GPU_CHARTS_KEY_FILE: {{ include "gpu-accept.keyFile" . }}
{{- end }}
{{- end }}

{{- define "gpu-accept.keyFile" -}}
{{ (include "gpu-accept.contract" . | fromJson).keyFile }}
{{- end }}

{{/* Something if the release has a NetworkPolicy. By default it has one where it would apply. */}}
{{- define "gpu-accept.hasPolicy" -}}
{{- if kindIs "bool" .Values.networkPolicy.enabled -}}
{{ ternary "yes" "" .Values.networkPolicy.enabled }}
{{- else if not (include "gpu-accept.hostNetwork" .) -}}
yes
{{- end -}}
{{- end }}

{{/* Rules of the NetworkPolicy; call with root and labels, which select the pods. */}}
{{- define "gpu-accept.networkPolicySpec" -}}
podSelector:
  matchLabels:
    {{- .labels | nindent 4 }}
policyTypes: {{ .root.Values.networkPolicy.restrictEgress | ternary (list "Ingress" "Egress") (list "Ingress") | toJson }}
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

{{/* Refuse a NetworkPolicy that would not apply, and rules without one. */}}
{{- define "gpu-accept.refuseNetworkPolicy" -}}
{{- $policy := .Values.networkPolicy -}}
{{- $host := include "gpu-accept.hostNetwork" . -}}
{{- $rules := $policy.ingress | empty | ternary "restrictEgress" "ingress" -}}
{{- $has := or $policy.ingress $policy.restrictEgress -}}
{{- include "gpu-accept.refuse" (list
  (list (and $host $policy.enabled) (printf "networkPolicy.enabled: a NetworkPolicy does not apply to pods in the network of the node, which %s asks for. Sign their messages instead (authentication.secretName), and set:\n\nnetworkPolicy:\n  enabled: false" $host))
  (list (and $has $host) (printf "networkPolicy.%s: a NetworkPolicy does not apply to pods in the network of the node, which %s asks for. Remove the rules." $rules $host))
  (list (and $has (not (include "gpu-accept.hasPolicy" .))) (printf "networkPolicy.%s: the rules have no effect without the policy. Set:\n\nnetworkPolicy:\n  enabled: true" $rules))
  (list (and $policy.egress (not $policy.restrictEgress)) "networkPolicy.egress: the rules have no effect without restrictEgress. Set:\n\nnetworkPolicy:\n  restrictEgress: true")) -}}
{{- end }}

{{/* Locks that the release lacks, for the notes. */}}
{{- define "gpu-accept.missingLocks" -}}
{{- $lines := list -}}
{{- $host := include "gpu-accept.hostNetwork" . -}}
{{- if $host -}}
{{- $lines = append $lines (printf "No NetworkPolicy, because %s is true: whatever reaches the nodes reaches the pods." $host) -}}
{{- else if not (include "gpu-accept.hasPolicy" .) -}}
{{- $lines = append $lines "No NetworkPolicy (networkPolicy.enabled): every pod of the cluster reaches the pods of this release." -}}
{{- end -}}
{{- if and (include "gpu-accept.hasPolicy" .) (include "gpu-accept.openIngress" .) -}}
{{- $lines = append $lines "A rule in networkPolicy.ingress admits every pod: the NetworkPolicy keeps none away." -}}
{{- end -}}
{{- if and (include "gpu-accept.exchanges" .) (not .Values.authentication.secretName) -}}
{{- $lines = append $lines "No key (authentication.secretName): messages between the pods are not signed." -}}
{{- end -}}
{{- join "\n" $lines }}
{{- end }}

{{/* Something if a rule of the user admits every pod on every port. */}}
{{- define "gpu-accept.openIngress" -}}
{{- range $rule := .Values.networkPolicy.ingress -}}
{{- $open := empty .from -}}
{{- range .from -}}
{{- $everyPod := and (hasKey . "namespaceSelector") (empty .namespaceSelector) (empty .podSelector) -}}
{{- $open = or $open $everyPod (has (dig "ipBlock" "cidr" "" .) (list "0.0.0.0/0" "::/0")) -}}
{{- end -}}
{{- if and $open (empty .ports) }}yes{{ end -}}
{{- end -}}
{{- end }}
