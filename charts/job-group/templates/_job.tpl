{{/*
Spec of the Job of any rank; call with root, id, name and the task of this name. One NonIndexed Job
per rank, because an Indexed Job forces its own host names, and J-i.G would not exist.
*/}}
{{- define "job-group.job" -}}
{{- $task := .task -}}
{{- $codes := (include "job-group.contract" .root | fromJson).exitCodes -}}
completionMode: NonIndexed
completions: 1
parallelism: 1
backoffLimit: 0
podReplacementPolicy: Failed
{{- with .root.Values.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ . | int64 }}
{{- end }}
{{- if and (eq .root.Values.workload "jobs") (not (kindIs "invalid"
  .root.Values.ttlSecondsAfterFinished)) }}
ttlSecondsAfterFinished: {{ .root.Values.ttlSecondsAfterFinished | int64 }}
{{- end }}
podFailurePolicy:
  rules:
    {{- /* A pod that was evicted, deleted, or lost with its node is replaced, and this does not
    count as a failure. Kueue sets TerminationTarget when it takes the quota back. */}}
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
        - {type: TerminationTarget, status: "True"}
    - action: Ignore
      onExitCodes: {containerName: task, operator: In, values: {{ list $codes.STOPPED | toJson }}}
    {{- with include "job-group.listedCodes" . | fromJsonArray }}
    - action: FailJob
      onExitCodes: {containerName: task, operator: In, values: {{ toJson . }}}
    {{- end }}
template:
  {{- include "job-group.pods" .root }}
  {{- get .root.ranks .name | nindent 2 }}
{{- end }}

{{/*
Exit codes of a task of several nodes that restart the whole group, as JSON. Its Job then fails with
the reason PodFailurePolicy, which a rule of the JobSet matches. A task of one node starts again in
its container instead, if its node is fit.
*/}}
{{- define "job-group.listedCodes" -}}
{{- $codes := list -}}
{{- $own := (include "job-group.contract" .root | fromJson).exitCodes -}}
{{- $several := gt (.task.numNodes | default 1 | int) 1 -}}
{{- $gate := eq (include "job-group.testOfTask" .) "gate" -}}
{{- if and (eq .root.Values.workload "jobset") (or $several $gate) -}}
{{- $listed := dig "recovery" "recoverOnExitCodes" list .task | toStrings -}}
{{- if not $several }}{{ $listed = list }}{{ end -}}
{{- if $gate }}{{ $listed = append $listed (toString $own.NODE_UNFIT) }}{{ end -}}
{{- $listed = without $listed (toString $own.DONE) (toString $own.STOPPED) -}}
{{- range $code := $listed | empty |
  ternary list (until 256) -}}{{/* Kubernetes requires them sorted */}}
{{- if has (toString $code) $listed }}{{ $codes = append $codes $code }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $codes -}}
{{- end }}

{{/* Success and failure policy of the JobSet. */}}
{{- define "job-group.policies" -}}
{{- $root := . -}}
{{- $restarts := 0 -}}
{{- range .Values.tasks -}}
{{- if gt (.numNodes | default 1 | int) 1 -}}
{{- $restarts = max $restarts (dig "recovery" "maxRestartsOnErrors" 0 . | int) -}}
{{- end -}}
{{- end -}}
{{- $primary := list -}}
{{- range $name := sortAlpha .Values.primaryTasks -}}
{{- range until ((index $root.Values.tasks $name).numNodes | default 1 | int) }}
{{- $primary = append $primary (printf "%s-%d" $name .) }}
{{- end -}}
{{- end -}}
successPolicy:
  operator: All
  targetReplicatedJobs: {{ toJson $primary }}
failurePolicy:
  maxRestarts: {{ $restarts }}
  # No rank of a new attempt may meet a rank of the last one.
  restartStrategy: BlockingRecreate
  rules:
    {{- range $name, $task := .Values.tasks }}
    {{- $nodes := $task.numNodes | default 1 | int }}
    {{- $hosts := list }}
    {{- range until $nodes }}{{ $hosts = append $hosts (printf "%s-%d" $name .) }}{{ end }}
    {{- if include "job-group.listedCodes" (dict "root" $root "task" $task) | fromJsonArray }}
    - name: recover_{{ $name | replace "-" "_" }}
      action: RestartJobSetAndIgnoreMaxRestarts
      onJobFailureReasons: [PodFailurePolicy]
      targetReplicatedJobs: {{ toJson $hosts }}
    {{- end }}
    {{- if or (eq $nodes 1) (not (dig "recovery" "maxRestartsOnErrors" 0 $task)) }}
    - name: fail_{{ $name | replace "-" "_" }}
      action: FailJobSet
      onJobFailureReasons: []
      targetReplicatedJobs: {{ toJson $hosts }}
    {{- end }}
    {{- end }}
    - name: restart
      action: RestartJobSet
      onJobFailureReasons: []
      targetReplicatedJobs: []
{{- end }}

{{/* Affinity: one topology domain for the group, and nodes with one of the GPU models, by any of
the labels. */}}
{{- define "job-group.affinity" -}}
{{- $values := .root.Values }}
{{- $task := .task }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      # A group starts when no pod of an earlier one of this name is left on any node: both would
      # write to one volume.
      - topologyKey: kubernetes.io/os
        labelSelector:
          matchLabels: {job-group/name: {{ $values.name | quote }}}
          matchExpressions: [{key: job-group/id, operator: NotIn, values: [{{ .id | quote }}]}]
  {{- with $values.placement.topologyKey }}
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: {{ . | quote }}
        labelSelector:
          matchLabels:
            {{- include "job-group.podLabels" $ | nindent 12 }}
  {{- end }}
  {{- with dig "accelerator" "types" list $task }}
  {{- $labels := dict }}
  {{- range . }}
  {{- range $label, $names := include "job-group.gpuLabels" (dict "root" $.root "type" .) |
    fromYaml }}
  {{- $_ := set $labels $label (concat (index $labels $label | default list) $names | uniq) }}
  {{- end }}
  {{- end }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range $label, $names := $labels }}
        - matchExpressions:
            - key: {{ $label | quote }}
              operator: In
              values:
                {{- toYaml $names | nindent 16 }}
        {{- end }}
  {{- end }}
{{- end }}

{{/* Node labels of a GPU type with their values. A type that nobody has a row for is the label's
value itself. */}}
{{- define "job-group.gpuLabels" -}}
{{- $values := .root.Values -}}
{{- $row := dict -}}
{{- range $label, $types := .root.Files.Get "files/gpu-types.yaml" | fromYaml -}}
{{- with get $types $.type }}{{ $_ := set $row $label . }}{{ end -}}
{{- end -}}
{{ get $values.accelerators.types .type | default $row | default
  (dict $values.accelerators.nodeLabel (list .type)) | toYaml }}
{{- end }}

{{/*
What Kueue compares to find pods of one kind, as JSON; call with the spec of the pod. Kubernetes
takes a limit for the request that is missing.
*/}}
{{- define "job-group.shape" -}}
{{- $shape := pick . "affinity" "nodeSelector" "overhead" "priorityClassName" "resourceClaims"
  "resources" "runtimeClassName" "tolerations" "topologySpreadConstraints" -}}
{{- range $kind, $containers := pick . "initContainers" "containers" -}}
{{- $found := list -}}
{{- range $containers -}}
{{- $requests := merge dict (dig "resources" "requests" dict .)
  (dig "resources" "limits" dict .) -}}
{{- $found = append $found (list $requests (.ports | default list)) -}}
{{- end -}}
{{- $_ := set $shape $kind $found -}}
{{- end -}}
{{ toJson $shape }}
{{- end }}
