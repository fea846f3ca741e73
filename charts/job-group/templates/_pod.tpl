{{/*
Pod template of any rank of a task; call with what `job-group.job` has, and rank. The agent is a
sidecar in an image with Python; the task runs in any image with a POSIX shell.
*/}}
{{- define "job-group.pod" -}}
{{- $values := .root.Values }}
{{- $task := .task }}
{{- $gpus := dig "accelerator" "count" 0 $task | int }}
{{- $launcher := eq (include "job-group.launcher" .) "ddp-launch" -}}
{{- $programs := or $launcher (include "job-group.testOfTask" .) -}}
{{- /* Without JobSet the pods themselves form a pod group of Kueue. */}}
{{- $queued := and $values.kueue.queueName (eq $values.workload "jobs") -}}
metadata:
  labels:
    {{- include "job-group.podLabels" . | nindent 4 }}
    job-group/task: {{ .name | quote }}
    job-group/rank: {{ .rank | quote }}
    {{- /* The agent, an init container, would have no network before the sidecar of a service mesh.
    */}}
    sidecar.istio.io/inject: "false"
    {{- if $queued }}
    {{- include "job-group.kueue" .root | nindent 4 }}
    kueue.x-k8s.io/pod-group-name: {{ .id | quote }}
    {{- end }}
  annotations:
    {{- include "job-group.noEviction" . | nindent 4 }}
    {{- if $queued }}
    kueue.x-k8s.io/pod-group-total-count: {{ include "job-group.size" .root | quote }}
    {{- /* The Job replaces its pod. Kueue must not keep the pods of a cancelled group and wait for
    others. */}}
    kueue.x-k8s.io/retriable-in-group: "false"
    {{- with $values.kueue.requiredTopology }}
    kueue.x-k8s.io/podset-required-topology: {{ . | quote }}
    {{- end }}
    {{- end }}
spec:
  restartPolicy: Never
  hostname: {{ .name }}-{{ .rank }}
  {{- if $values.interConnection }}
  subdomain: {{ $values.name | quote }}
  {{- end }}
  {{- include "job-group.podFields" (dict "root" .root "nodeSelector" $values.nodeSelector) |
    nindent 2 }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- /* SIGTERM, the delay of an auxiliary task, SIGTERM for the program, its grace time, SIGKILL.
  */}}
  terminationGracePeriodSeconds: {{ add (include "job-group.grace" .)
    ($task.terminationDelaySeconds | default 0) }}
  {{- with include "job-group.affinity" . | trim }}{{ . | nindent 2 }}{{ end }}
  {{- if $values.interConnection }}
  initContainers:
    {{- /* A sidecar: it starts before the task and ends after it. */}}
    - name: agent
      restartPolicy: Always
      image: {{ include "job-group.helperImage" .root | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [/group/programs/group-agent]
      args:
        - --host={{ .name }}-{{ .rank }}
        - --plan=/group/scripts/group.json
        - --state-dir=/group/state
      env:
        {{- include "job-group.environment" (dict "root" .root "set"
          (merge (include "job-group.runEnv" . | fromYaml)
          (include "job-group.keyVariable" .root | fromYaml))) | trim | nindent 8 }}
      {{- /* Nothing of each amount that the task names: a quota that asks for it then admits both.
      */}}
      {{- $nothing := dict }}
      {{- range $kind, $amounts := $task.resources }}
      {{- range $name, $_ := pick $amounts "cpu" "memory" "ephemeral-storage" }}
      {{- $_ := set $nothing $kind (merge (dict $name 0) (get $nothing $kind | default dict)) }}
      {{- end }}
      {{- end }}
      {{- with include "job-group.resources" (dict "resources"
        ($values.agent.resources | default $nothing) "devices" dict) }}
      resources:
        {{- . | nindent 8 }}
      {{- end }}
      {{- $host := dig "spec" "hostNetwork" false $values.podTemplate }}
      {{- if or $host (dig "podTemplate" "spec" "hostNetwork" false $task) }}
      ports: # of the node, which therefore gets one rank only
        - {name: agent, containerPort: {{ (include "job-group.contract" .root |
          fromJson).ports.groupAgent }}}
      {{- end }}
      {{- include "job-group.container" .root | nindent 6 }}
      volumeMounts:
        - {name: scripts, mountPath: /group/scripts, readOnly: true}
        - {name: programs, mountPath: /group/programs, readOnly: true}
        - {name: state, mountPath: /group/state}
        - {name: agent, mountPath: /tmp}
        {{- with include "job-group.keyMount" .root }}{{ . | nindent 8 }}{{ end }}
  {{- end }}
  containers:
    - name: task
      image: {{ $task.image | default (include "job-group.image" .root) | quote }}
      {{- if not $task.image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      {{- end }}
      command: [sh, /group/scripts/entry.sh]
      env:
        {{- include "job-group.env" . | trim | nindent 8 }}
      {{- $devices := dict $values.gpuResourceName
        (list (printf "tasks.%s.accelerator" .name) $gpus) }}
      {{- with include "job-group.resources" (dict "resources" $task.resources "devices" $devices
        "path" (printf "tasks.%s.resources" .name)) }}
      resources:
        {{- . | nindent 8 }}
      {{- end }}
      {{- include "job-group.container" .root | nindent 6 }}
      volumeMounts:
        - {name: scripts, mountPath: /group/scripts, readOnly: true}
        - {name: state, mountPath: /group/state}
        - {name: home, mountPath: /group/home}
        - {name: tmp, mountPath: /tmp}
        - {name: shared-memory, mountPath: /dev/shm}
        {{- if $programs }}
        - {name: programs, mountPath: /group/programs, readOnly: true}
        {{- end }}
        {{- if $launcher }}
        {{- with include "job-group.keyMount" .root }}{{ . | nindent 8 }}{{ end }}
        {{- end }}
        {{- range $index, $volume := $task.volumes }}
        - name: volume-{{ $index }}
          mountPath: {{ regexReplaceAll "^~/" .mountPath "/group/home/" | quote }}
          {{- with .subPath }}
          subPath: {{ . | quote }}
          {{- end }}
          {{- if .readOnly }}
          readOnly: true
          {{- end }}
        {{- end }}
        {{- if or $task.fileMounts (dig "workdir" "files" "" $task) }}
        - {name: files, mountPath: /group/files, readOnly: true}
        {{- end }}
        {{- range $index, $mount := $task.fileMounts }}
        {{- if hasPrefix "~/" .mountPath }}
        {{- else if .subPath }}
        {{- $key := 0 }}
        {{- range $number, $path := keys (index $values.files .files) | sortAlpha }}
        {{- if eq $path $mount.subPath }}{{ $key = $number }}{{ end }}
        {{- end }}
        - {name: files, mountPath: {{ .mountPath |
          quote }}, subPath: {{ .files }}.{{ $key }}, readOnly: true}
        {{- else }}
        - {name: folder-{{ $index }}, mountPath: {{ .mountPath | quote }}}
        {{- end }}
        {{- end }}
  volumes:
    - name: scripts
      configMap:
        name: {{ .id | quote }}
        items:
          - {key: entry.sh, path: entry.sh}
          - {key: askpass.sh, path: askpass, mode: 0555}
          - {key: group.json, path: group.json}
          - {key: {{ .name }}.setup, path: setup}
          - {key: {{ .name }}.run, path: run}
          - {key: {{ .name }}.files, path: files}
          {{- if dig "workdir" "git" nil $task }}
          - {key: {{ .name }}.git, path: git}
          {{- end }}
    - name: state
      emptyDir: {}
    {{- /* Writable even if the image or its user has no such folder, and kept across restarts in
    the container. */}}
    - name: home
      emptyDir: {}
    - name: tmp
      emptyDir: {}
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ dig "sharedMemory" "sizeLimit" $values.sharedMemory.sizeLimit $task | quote }}
    {{- if or $values.interConnection $programs }}
    {{- include "job-group.programsVolume" .root | nindent 4 }}
    {{- end }}
    {{- if $values.interConnection }}
    - name: agent # its own /tmp: a program may empty the one it has
      emptyDir: {sizeLimit: 64Mi}
    {{- end }}
    {{- range $index, $volume := $task.volumes }}
    - name: volume-{{ $index }}
      {{- if .claimName }}
      persistentVolumeClaim:
        claimName: {{ .claimName | quote }}
        {{- if .readOnly }}
        readOnly: true # a disk of many nodes can be attached in no other way
        {{- end }}
      {{- else }}
      ephemeral:
        volumeClaimTemplate:
          {{- with .labels }}
          metadata:
            labels:
              {{- toYaml . | nindent 14 }}
          {{- end }}
          spec:
            accessModes: [{{ .accessMode | default "ReadWriteOnce" }}]
            {{- with .storageClassName }}
            storageClassName: {{ . | quote }}
            {{- end }}
            resources:
              requests:
                storage: {{ .size | quote }}
      {{- end }}
    {{- end }}
    {{- if or $task.fileMounts (dig "workdir" "files" "" $task) }}
    - name: files
      configMap:
        name: {{ .id }}-files
        # A single file that is mounted may be a program; copies get the modes of their entries.
        defaultMode: 0755
    {{- end }}
    {{- range $index, $mount := $task.fileMounts }}
    {{- if not (or (hasPrefix "~/" .mountPath) .subPath) }}
    - name: folder-{{ $index }} # a copy that the task may change
      emptyDir: {}
    {{- end }}
    {{- end }}
    {{- with include "job-group.keyVolume" .root }}{{ . | nindent 4 }}{{ end }}
{{- end }}

{{/* Seconds of the program between SIGTERM and SIGKILL, the chart's own 3 included; those of a
podTemplate include the delay. */}}
{{- define "job-group.grace" -}}
{{- $task := .task -}}
{{- $own := dig "podTemplate" "spec" "terminationGracePeriodSeconds" "" $task | toString -}}
{{ $own | empty | ternary (int64 .root.Values.terminationGracePeriodSeconds)
  (max 1 (sub (int64 $own) ($task.terminationDelaySeconds | default 0))) }}
{{- end }}

{{/*
Program behind `torchrun` in a task, "ddp-launch" or "torchrun". Without a choice in the task,
ddp-launch serves the chart's image only, where the task is distributed and its run script calls
torchrun.
*/}}
{{- define "job-group.launcher" -}}
{{- $container := first (dig "podTemplate" "spec" "containers" (list dict) .task) -}}
{{- $distributed := or (gt (.task.numNodes | default 1 | int) 1)
  (gt (dig "accelerator" "count" 0 .task | int) 1) -}}
{{- $chartsImage := not (or .task.image $container.image) -}}
{{- $callsTorchrun := regexMatch "(^|[\\s;&|(])torchrun\\s" (.task.run | default "") -}}
{{- $automatic := and .root.Values.interConnection $chartsImage $distributed $callsTorchrun -}}
{{- .task.launcher | default (ternary "ddp-launch" "torchrun" $automatic) -}}
{{- end }}

{{/* `preflight.nodeTest` if this task's nodes are tested, by its image's Python and torch. */}}
{{- define "job-group.testOfTask" -}}
{{- if or .task.accelerator (eq (include "job-group.launcher" .) "ddp-launch") -}}
{{ include "job-group.nodeTest" .root }}
{{- end -}}
{{- end }}

{{/* Pod template with that of all tasks and the task's own merged over it. */}}
{{- define "job-group.podTemplate" -}}
{{- $env := include "job-group.taskEnv" . | fromJson }}
{{- $pod := include "job-group.withTemplate" (dict
  "pod" (include "job-group.pod" .) "own" .root.Values.podTemplate "env" $env "path" "podTemplate") }}
{{- include "job-group.withTemplate" (dict
  "pod" $pod "own" .task.podTemplate "env" $env "path" (printf "tasks.%s.podTemplate" .name)) }}
{{- end }}

{{/* Pod template of each task: of rank 0 in .pods, of any rank in .ranks. */}}
{{- define "job-group.renderPods" -}}
{{- $_ := set . "ranks" dict }}
{{- $id := include "job-group.id" . }}
{{- $anyRank := include "job-group.anyRank" (dict "id" $id) }}
{{- range $name, $task := .Values.tasks }}
{{- $pod := include "job-group.podTemplate" (dict "root" $ "id" $id "name" $name "task" $task "rank"
  $anyRank) }}
{{- $_ := set $.ranks $name $pod }}
{{- $_ := set $.pods $name ($pod | replace $anyRank "0") }}
{{- end }}
{{- end }}
