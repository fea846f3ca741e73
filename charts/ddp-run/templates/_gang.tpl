{{/*
Gang scheduling by Kubernetes itself: a PodGroup of which all pods get nodes at the same time, or none. Call with root, id,
and count. It is standalone, without a Workload, so pods of several Jobs and shapes are
one gang. Kubernetes schedules none of them unless all have one scheduler and one priority, which is that of the PodGroup.
*/}}
{{- define "ddp-run.gang" -}}
{{- $classes := list -}}
{{- $schedulers := list -}}
{{- $groups := list -}}
{{- include "ddp-run.pods" .root -}}
{{- range .root.pods -}}
{{- $spec := (fromYaml .).spec -}}
{{- $classes = append $classes ($spec.priorityClassName | default "") -}}
{{- $schedulers = append $schedulers ($spec.schedulerName | default "default-scheduler") -}}
{{- $groups = append $groups $spec.schedulingGroup.podGroupName -}}
{{- end -}}
{{- include "ddp-run.refuse" (list
  (list .root.Values.kueue.queueName "placement.gang: it and kueue.queueName would wait for each other. Remove one of them.")
  (list (not (.root.Capabilities.APIVersions.Has "scheduling.k8s.io/v1beta1/PodGroup"))
    "placement.gang: this cluster has no scheduling.k8s.io/v1beta1/PodGroup (docs/clusters.md). Use kueue.queueName.")
  (list (gt (uniq $classes | len) 1)
    (printf "placement.gang: all pods need one priorityClassName, instead of %s." (uniq $classes | toJson)))
  (list (gt (uniq $schedulers | len) 1)
    (printf "placement.gang: all pods need one schedulerName, instead of %s." (uniq $schedulers | toJson)))
  (list (ne (uniq $groups | toJson) (list .id | toJson))
    "placement.gang: remove schedulingGroup from podTemplate: the chart has a PodGroup of its own.")) -}}
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata:
  name: {{ .id | quote }}
  labels:
    {{- include "ddp-run.labels" .root | nindent 4 }}
spec:
  schedulingPolicy:
    gang:
      minCount: {{ .count }}
  {{- with first $classes }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .root.Values.placement.topologyKey }}
  schedulingConstraints:
    topology:
      - key: {{ . | quote }}
  {{- end }}
  disruptionMode:
    single: {} # the default, written out for GitOps tools
{{- end }}
