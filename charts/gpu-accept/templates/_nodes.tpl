{{/* Number of nodes of `nodes`, a number or a list of names; empty if it is not set. */}}
{{- define "gpu-accept.nodeCount" -}}
{{- if kindIs "slice" .Values.nodes }}
{{- len .Values.nodes }}
{{- else if not (kindIs "invalid" .Values.nodes) }}
{{- int64 .Values.nodes }}
{{- end -}}
{{- end }}

{{/* The nodes that must report. */}}
{{- define "gpu-accept.expected" -}}
{{- if kindIs "slice" .Values.nodes }}
- --expect-names={{ join "," .Values.nodes }}
{{- else if not (kindIs "invalid" .Values.nodes) }}
- --expect-nodes={{ .Values.nodes | int64 }}
{{- end }}
{{- end }}

{{/*
Which nodes are tested, in this order: the names in `nodes`; the labels of `nodeSelector`; with
GPUs, any label by which a node is known to have some. NVIDIA's operator sets gpu.present to "false"
on a node that lost its GPUs: it must be tested, so the value does not matter.
*/}}
{{- define "gpu-accept.nodeAffinity" -}}
{{- $named := kindIs "slice" .Values.nodes -}}
{{- $chosen := or $named (and (not .Values.nodeSelector) (eq .Values.device "cuda")) -}}
{{- if or $chosen .Values.patrol.schedule -}}
nodeAffinity:
{{- if .Values.patrol.schedule }}
  preferredDuringSchedulingIgnoredDuringExecution: # nodes without this label, then "0" and so on
    {{- range until 5 }}
    - weight: {{ div 100 (add1 .) }}
      preference:
        matchExpressions:
          - key: gpu-accept/recent
            operator: NotIn
            values: {{ untilStep . 5 1 | toStrings | toJson }}
    {{- end }}
{{- end }}
{{- if $chosen }}
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range $named | ternary .Values.nodes list }}
      - matchFields: [{key: metadata.name, operator: In, values: [{{ quote . }}]}]
      {{- else }}
      {{- range list
        "nvidia.com/gpu.present" "nvidia.com/gpu.count" "nvidia.com/gpu.product"
        "cloud.google.com/gke-accelerator"
        "kubernetes.azure.com/accelerator"
        "k8s.amazonaws.com/accelerator"
        "karpenter.k8s.aws/instance-gpu-count"
        "eks.amazonaws.com/instance-gpu-count"
        "gpu.nvidia.com/class"
        "amd.com/gpu.product-name" "amd.com/gpu.device-id" "feature.node.kubernetes.io/amd-gpu" }}
      - matchExpressions: [{key: {{ . }}, operator: Exists}]
      {{- end }}
      # AKS before 2023; the name is too common to accept any value.
      - matchExpressions: [{key: accelerator, operator: In, values: [nvidia]}]
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
