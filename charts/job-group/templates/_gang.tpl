{{/*
Gang scheduling by Kubernetes itself: a PodGroup of which all pods get nodes at the same time, or none. Call with root, id
and count. It is standalone, without a Workload, so pods of several Jobs and shapes are one gang.
*/}}
{{- define "job-group.gang" -}}
{{- include "job-group.refuse" (list
  (list .root.Values.kueue.queueName "placement.gang: Kueue admits all pods together, so the two would wait for each other. Remove one of them:\n\nplacement:\n  gang: \"\"")
  (list (not (.root.Capabilities.APIVersions.Has "scheduling.k8s.io/v1beta1/PodGroup")) "placement.gang: this cluster has no PodGroup of scheduling.k8s.io/v1beta1. It needs Kubernetes 1.37, with the feature gate\nGenericWorkload and --runtime-config=scheduling.k8s.io/v1beta1=true. Elsewhere use Kueue:\n\nkueue:\n  queueName: team-a\n\nplacement:\n  gang: \"\"\n\n`helm template` asks no cluster: add --api-versions scheduling.k8s.io/v1beta1/PodGroup")) -}}
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata:
  name: {{ .id | quote }}
  labels:
    {{- include "job-group.labels" .root | nindent 4 }}
spec:
  schedulingPolicy:
    gang:
      minCount: {{ .count }}
  {{- with .root.Values.placement.topologyKey }}
  schedulingConstraints:
    topology:
      - key: {{ . | quote }}
  {{- end }}
  disruptionMode:
    single: {} # the default, written out for GitOps tools
{{- end }}
