{{/*
Spec of the Job of one rank; call with root, id and item {task, rank, host}. One NonIndexed Job a rank: an Indexed
Job would force its own host names, and J-i.G would not exist.
*/}}
{{- define "job-group.job" -}}
{{- $values := .root.Values }}
{{- $task := index $values.tasks .item.task }}
{{- $nodes := $task.numNodes | default 1 | int }}
{{- $gpus := dig "accelerator" "count" 0 $task | int }}
{{- $worker := include "common.image" .root -}}
completionMode: NonIndexed
completions: 1
parallelism: 1
backoffLimit: 0
podReplacementPolicy: Failed
template:
  metadata:
    labels:
      {{- include "job-group.selectorLabels" . | nindent 6 }}
      job-group/task: {{ .item.task }}
      job-group/rank: {{ .item.rank | quote }}
      {{- with include "job-group.queueLabels" . }}
      {{- . | nindent 6 }}
      {{- end }}
    {{- with include "job-group.queueAnnotations" . }}
    annotations:
      {{- . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    hostname: {{ .item.host }}
    subdomain: {{ $values.name }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds | int64 }}
    securityContext:
      {{- toYaml $values.podSecurityContext | nindent 6 }}
    {{- with $values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with include "job-group.affinity" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    initContainers:
      # Proves that the task's image is here and starts, before the barrier counts this rank as present.
      - name: image
        image: {{ $task.image | default $worker }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command: [bash, -c, ":"]
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
      - name: barrier
        image: {{ $worker }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command: [group-barrier]
        args:
          - --self={{ .item.host }}
          - --domain={{ include "job-group.domain" .root }}
          - --deadline={{ $values.barrier.timeoutSeconds | int64 }}
          - --node-ips-file=/group/state/node_ips
          {{- range $name, $each := $values.tasks }}
          - {{ $name }}={{ $each.numNodes | default 1 | int64 }}
          {{- end }}
        terminationMessagePolicy: FallbackToLogsOnError
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          - {name: state, mountPath: /group/state}
    containers:
      - name: task
        image: {{ $task.image | default $worker }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command: [bash, /group/scripts/entry.sh]
        env:
          {{- include "job-group.env" . | trim | nindent 10 }}
        {{- $resources := deepCopy ($task.resources | default dict) }}
        {{- if $gpus }}
        {{- $_ := set $resources "limits" (merge (dict $values.accelerators.resourceName $gpus) ($resources.limits | default dict)) }}
        {{- end }}
        {{- with $resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        terminationMessagePolicy: FallbackToLogsOnError
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          - {name: scripts, mountPath: /group/scripts, readOnly: true}
          - {name: state, mountPath: /group/state}
          - {name: shared-memory, mountPath: /dev/shm}
    volumes:
      - name: scripts
        configMap:
          name: {{ .id | quote }}
          items:
            - {key: entry.sh, path: entry.sh}
            - {key: {{ .item.task }}.setup, path: setup}
            - {key: {{ .item.task }}.run, path: run}
      - name: state
        emptyDir: {}
      - name: shared-memory
        emptyDir:
          medium: Memory
          sizeLimit: {{ $values.sharedMemory.sizeLimit }}
{{- end }}

{{/* The environment contract; the user's own variables come last and win. */}}
{{- define "job-group.env" -}}
{{- $task := index .root.Values.tasks .item.task }}
{{- $nodes := $task.numNodes | default 1 | int }}
{{- $gpus := dig "accelerator" "count" 0 $task | int }}
{{- $procs := max 1 $gpus }}
{{- $master := printf "%s-0.%s" .item.task (include "job-group.domain" .root) -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: RUN_ID, value: {{ .id | quote }}}
{{- if eq .root.Values.layout "jobset" }}
- {name: ATTEMPT, valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}}
{{- else }}
- {name: ATTEMPT, value: "0"}
{{- end }}
{{- $contract := dict
  "NNODES" $nodes "NODE_RANK" .item.rank "NPROC_PER_NODE" $procs "MASTER_ADDR" $master "MASTER_PORT" 29500
  "PET_NNODES" $nodes "PET_NODE_RANK" .item.rank "PET_NPROC_PER_NODE" $procs
  "PET_MASTER_ADDR" $master "PET_MASTER_PORT" 29500
  "NUM_NODES" $nodes "NUM_GPUS_PER_NODE" $gpus "RANK" .item.rank
  "SKYPILOT_JOBGROUP_NAME" .root.Values.name
  "SKYPILOT_NUM_NODES" $nodes "SKYPILOT_NODE_RANK" .item.rank "SKYPILOT_NUM_GPUS_PER_NODE" $gpus
  "SKYPILOT_TASK_ID" (printf "%s_%s" .id .item.task) }}
{{- range $name, $value := merge (deepCopy ($task.env | default dict)) $contract }}
{{- /* Kubernetes would expand $(NAME) and halve $$ in a value; users mean what they wrote. */}}
- {name: {{ $name }}, value: {{ $value | toString | replace "$" "$$" | quote }}}
{{- end }}
{{- end }}

{{/* One topology domain for the group, and nodes that have the GPU model. */}}
{{- define "job-group.affinity" -}}
{{- $values := .root.Values }}
{{- $task := index $values.tasks .item.task }}
{{- if or $values.placement.topologyKey $task.accelerator -}}
affinity:
  {{- with $values.placement.topologyKey }}
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: {{ . }}
        labelSelector:
          matchLabels:
            {{- include "job-group.selectorLabels" $ | nindent 12 }}
  {{- end }}
  {{- with $task.accelerator }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: {{ $values.accelerators.nodeLabel }}
              operator: In
              values:
                {{- toYaml (index $values.accelerators.types .type) | nindent 16 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Without JobSet the pods themselves form a Kueue pod group. */}}
{{- define "job-group.queueLabels" -}}
{{- if and .root.Values.kueue.queueName (eq .root.Values.layout "jobs") -}}
kueue.x-k8s.io/queue-name: {{ .root.Values.kueue.queueName }}
kueue.x-k8s.io/pod-group-name: {{ .id | quote }}
{{- end }}
{{- end }}

{{- define "job-group.queueAnnotations" -}}
{{- if and .root.Values.kueue.queueName (eq .root.Values.layout "jobs") -}}
kueue.x-k8s.io/pod-group-total-count: {{ include "job-group.size" .root | quote }}
# No pod of the group is replaced, so Kueue must not hold on to deleted ones and wait for a replacement.
kueue.x-k8s.io/retriable-in-group: "false"
{{- end }}
{{- end }}
