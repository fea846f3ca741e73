{{/* The run: its names, its command, and the spec of its Job, StatefulSet or JobSet with the policy
for exit codes. */}}

{{/* Name of the run. It names folders and tracker runs, so it stays the same when the run's object
is replaced. */}}
{{- define "ddp-run.runName" -}}
{{ .Values.runName | default (include "ddp-run.fullname" .) }}
{{- end }}

{{- define "ddp-run.id" -}}
{{- $values := .Values -}}
{{- $launches := eq $values.launcher "ddp-launch" -}}
{{- $never := list "kueue.priorityClass" "rendezvous.etcd.image"
  "rendezvous.etcd.podTemplate" "ttlSecondsAfterFinished" -}}
{{- $acts := dict
  "activeDeadlineSeconds" (eq $values.workload "jobset")
  "gpuResourceName" (gt (int $values.gpusPerNode) 0)
  "preflight.nodeTest" (include "ddp-run.nodeTest" .)
  "image" (not $values.program.image)
  "procsPerNode" (ne (int $values.procsPerNode) (max 1 $values.gpusPerNode | int))
  "volumes.datasets.readOnly" $values.volumes.datasets.claimName
  "volumes.models.readOnly" $values.volumes.models.claimName
  "program.preset" (not $values.program.args) -}}
{{- range list "maxRestartsInPlace" "program.python" "progressAction"
  "timeouts.heartbeatSeconds" "timeouts.collectiveSeconds" "timeouts.exitSeconds" "timeouts.progressSeconds" -}}
{{- $_ := set $acts . $launches -}}
{{- end -}}
{{ include "ddp-run.fullname" . }}-{{ include "ddp-run.hash"
  (dict "root" . "never" $never "acts" $acts) }}
{{- end }}

{{/* Pod i answers at <this>-i.<Service>; call with root and id. */}}
{{- define "ddp-run.hosts" -}}
{{ .id }}{{ if eq .root.Values.workload "jobset" }}-r-0{{ end }}
{{- end }}

{{/* HOST:PORT of etcd. */}}
{{- define "ddp-run.etcd" -}}
{{- if .Values.rendezvous.etcd.deploy -}}
{{ include "ddp-run.fullname"
  . }}-etcd.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:2379
{{- else -}}
{{ .Values.rendezvous.etcd.endpoint }}
{{- end -}}
{{- end }}

{{- define "ddp-run.program" -}}
{{- $preset := .Files.Get (printf "files/presets/%s.yaml" .Values.program.preset) | fromYaml -}}
{{- $args := .Values.program.args | default $preset.args | default list }}
{{- if eq .Values.launcher "torchrun" }}
{{- /* Without "--", torchrun takes the program's --run for the start of --run-path and --run_path,
and refuses it. */}}
{{- $first := first $args | toString }}
{{- if has $first (list "-m" "--module" "--no-python" "--no_python") }}
{{- $args = concat (list $first "--") (rest $args) }}
{{- else if not (hasPrefix "-" $first) }}
{{- $args = prepend $args "--" }}
{{- end }}
{{- end }}
{{- range $args }}
{{- /* `--set program.args={train.py,--epochs,3}` gives a number. */}}
{{- $word := kindIs "string" . | ternary . (. | int64 | toString) }}
{{- /* Kubernetes would expand $(NAME) and halve $$; users mean what they wrote. */}}
- {{ $word | replace "$" "$$" | quote }}
{{- end -}}
{{- end }}

{{/* Exit codes after which new pods start and do not count, as JSON; the launcher bounds how often.
*/}}
{{- define "ddp-run.lostCodes" -}}
{{- $codes := (include "ddp-run.contract" . | fromJson).exitCodes -}}
{{- $gate := eq (include "ddp-run.nodeTest" .) "gate" -}}
{{ $gate | ternary (list $codes.NODE_LOST $codes.NODE_UNFIT) (list $codes.NODE_LOST) | toJson }}
{{- end }}

{{/* Number of pods. Pod 0, which all need, ends last, and a spare that found no room does not hold
up the end. */}}
{{- define "ddp-run.completions" -}}
{{- $pods := add .Values.nodes .Values.spares -}}
completionMode: Indexed
completions: {{ $pods }}
parallelism: {{ $pods }}
{{- if and .Values.spares (semverCompare ">=1.31.0-0" .Capabilities.KubeVersion.Version) }}
successPolicy: {rules: [{succeededIndexes: "0"}]}
{{- end }}
{{- end }}

{{/* A failed attempt restarts the whole set: every launcher ends with the one that failed. Call
with root and id. */}}
{{- define "ddp-run.indexed-job" -}}
{{- $codes := (include "ddp-run.contract" .root | fromJson).exitCodes -}}
{{- $lost := include "ddp-run.lostCodes" .root | fromJsonArray -}}
{{ include "ddp-run.completions" .root }}
# Every attempt costs every index one failure, so this limits attempts.
backoffLimitPerIndex: {{ .root.Values.maxRestarts | int64 }}
{{- with .root.Values.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ . | int64 }}
{{- end }}
{{- if not (kindIs "invalid" .root.Values.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ .root.Values.ttlSecondsAfterFinished | int64 }}
{{- end }}
maxFailedIndexes: 0
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    # Replace a pod that was evicted, deleted, or lost with its node, and count no failure.
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
    # Replace a pod that was stopped because another pod of the run was stopped or lost. What is
    # wrong with that pod, its own state shows. 255 is the code of containerd and CRI-O for a
    # container that ended with its machine.
    - action: Ignore
      onExitCodes: {containerName: trainer, operator: In, values: {{ concat $lost
        (list $codes.SAVED $codes.STOPPED 255) | toJson }}}
    # A usage error does not go away with a restart.
    - action: FailJob
      onExitCodes: {containerName: trainer, operator: In, values: {{ list $codes.USAGE | toJson }}}
template:
  {{- include "ddp-run.podTemplate" .root | nindent 2 }}
{{- end }}

{{- define "ddp-run.statefulset" -}}
replicas: {{ .root.Values.nodes | int64 }}
serviceName: {{ include "ddp-run.fullname" .root }}
podManagementPolicy: Parallel
updateStrategy:
  type: OnDelete # a new version of the chart, the only change of these pods, does not restart them
selector:
  matchLabels:
    {{- include "ddp-run.nodeLabels" .root | nindent 4 }}
template:
  {{- include "ddp-run.endless" (include "ddp-run.podTemplate" .root) | nindent 2 }}
{{- end }}

{{- define "ddp-run.jobset" -}}
{{- $codes := (include "ddp-run.contract" .root | fromJson).exitCodes -}}
{{- $lost := include "ddp-run.lostCodes" .root | fromJsonArray -}}
# Every default is written out: a controller that fills in fields makes GitOps tools see a
# difference.
network:
  enableDNSHostnames: false # the Service of this chart does it
  publishNotReadyAddresses: true
startupPolicy:
  startupPolicyOrder: AnyOrder
successPolicy:
  operator: All
  targetReplicatedJobs: []
failurePolicy:
  maxRestarts: {{ .root.Values.maxRestarts | int64 }}
  # No pod of an attempt may meet a pod of the previous attempt.
  restartStrategy: BlockingRecreate
  rules:
    - name: preempted_or_saved
      action: RestartJobSetAndIgnoreMaxRestarts
      onJobFailureReasons: [PodFailurePolicy]
      targetReplicatedJobs: [r]
{{- if not (kindIs "invalid" .root.Values.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ .root.Values.ttlSecondsAfterFinished | int64 }}
{{- end }}
replicatedJobs:
  - name: r
    groupName: default
    replicas: 1
    template:
      spec:
        {{- include "ddp-run.completions" .root | nindent 8 }}
        # The first failure that counts fails the Job. Per index, Kubernetes also numbers those that
        # do not count.
        backoffLimitPerIndex: 0
        maxFailedIndexes: 0
        {{- with .root.Values.activeDeadlineSeconds }}
        activeDeadlineSeconds: {{ . | int64 }}
        {{- end }}
        podReplacementPolicy: Failed
        podFailurePolicy:
          rules:
            # Fail the Job with the reason PodFailurePolicy, which the JobSet does not count.
            - action: FailJob
              onPodConditions:
                - {type: DisruptionTarget, status: "True"}
            - action: FailJob
              onExitCodes: {containerName: trainer, operator: In, values: {{ list $codes.SAVED
                $codes.STOPPED | toJson }}}
            # As in an Indexed Job: whether the attempt counts, the state of the lost pod shows.
            - action: Ignore
              onExitCodes: {containerName: trainer, operator: In, values: {{ append $lost
                255 | toJson }}}
        template:
          {{- include "ddp-run.podTemplate" .root | nindent 10 }}
{{- end }}

{{/* Something if the pods exchange messages that a key can sign. */}}
{{- define "ddp-run.exchanges" -}}
{{ eq .Values.launcher "ddp-launch" | ternary "yes" "" }}
{{- end }}
