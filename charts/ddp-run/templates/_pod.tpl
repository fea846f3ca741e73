{{/* Pod template of a node; call with root and id. */}}
{{- define "ddp-run.pod" -}}
{{- $values := .root.Values -}}
{{- $parks := eq $values.workload "statefulset" -}}
{{- $launches := eq $values.launcher "ddp-launch" -}}
{{- $contract := include "ddp-run.contract" .root | fromJson -}}
metadata:
  labels:
    {{- include "ddp-run.nodeLabels" .root | nindent 4 }}
    ddp-run/id: {{ .id | quote }}
    # The sidecar of a service mesh would intercept the traffic between the pods.
    sidecar.istio.io/inject: "false"
  annotations:
    {{- include "ddp-run.noEviction" . | nindent 4 }}
spec:
  restartPolicy: Never
  subdomain: {{ include "ddp-run.fullname" .root }}
  {{- include "ddp-run.podFields" (dict "root" .root "nodeSelector" $values.nodeSelector) | nindent
    2 }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds | int64 }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- include "ddp-run.placement" . | nindent 2 }}
  containers:
    - name: trainer
      image: {{ $values.program.image | default (include "ddp-run.image" .root) | quote }}
      {{- if not $values.program.image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      {{- end }}
      command: {{ ternary (list $values.program.python "/programs/ddp-launch") (list "torchrun")
        $launches | toJson }}
      args:
        {{- if $launches }}
        - --join-timeout={{ $values.timeouts.joinSeconds | int64 }}
        - --heartbeat-timeout={{ $values.timeouts.heartbeatSeconds | int64 }}
        - --collective-timeout={{ $values.timeouts.collectiveSeconds | int64 }}
        - --exit-timeout={{ $values.timeouts.exitSeconds | int64 }}
        - --progress-timeout={{ $values.timeouts.progressSeconds | int64 }}
        - --progress-action={{ $values.progressAction }}
        - --max-restarts-in-place={{ $values.maxRestartsInPlace | int64 }}
        - --grace-period={{ sub $values.terminationGracePeriodSeconds 10 }}
        {{- with $values.network.interface }}
        - --interface={{ . }}
        {{- end }}
        {{- with include "ddp-run.nodeTest" .root }}
        - --node-test={{ . }}
        {{- end }}
        {{- with $values.spares }}
        - --spares={{ . | int64 }}
        {{- end }}
        - --output-dir=/out
        {{- if $parks }}
        - --idle-after-exit=/run/ddp
        - --max-attempts={{ $values.maxRestarts | int64 }}
        {{- end }}
        - --
        {{- end }}
        {{- include "ddp-run.program" .root | trim | nindent 8 }}
      env:
        {{- include "ddp-run.environment" (dict "root" .root "set"
          (include "ddp-run.variables" . | fromYaml) "env" $values.env "own" $values.podTemplate) |
          trim | nindent 8 }}
      {{- $devices := dict $values.gpuResourceName (list "gpusPerNode" $values.gpusPerNode) }}
      {{- with include "ddp-run.resources" (dict "resources" $values.resources "devices" $devices
        "path" "resources") }}
      resources:
        {{- . | nindent 8 }}
      {{- end }}
      ports:
        - {name: rendezvous, containerPort: {{ include "ddp-run.port" .root }}}
        - {name: launcher, containerPort: {{ add (include "ddp-run.port" .root)
          $contract.ports.launcherOffset }}}
      {{- if $parks }}
      # Not ready: every attempt has failed, and the pod waits to be deleted.
      readinessProbe:
        exec: {command: [test, -e, /run/ddp/ready]}
        periodSeconds: 5
      {{- end }}
      {{- include "ddp-run.container" .root | nindent 6 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: shared-memory, mountPath: /dev/shm}
        - {name: outputs, mountPath: /out}
        {{- if $values.volumes.datasets.claimName }}
        - {name: datasets, mountPath: /data, readOnly: {{ $values.volumes.datasets.readOnly }}}
        {{- end }}
        {{- if $values.volumes.models.claimName }}
        - {name: models, mountPath: /models, readOnly: {{ $values.volumes.models.readOnly }}}
        {{- end }}
        - {name: programs, mountPath: /programs, readOnly: true}
        {{- if $parks }}
        - {name: attempts, mountPath: /run/ddp}
        {{- end }}
        {{- with include "ddp-run.keyMount" .root }}{{ . | nindent 8 }}{{ end }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ $values.sharedMemory.sizeLimit | quote }}
    - name: outputs
      {{- if $values.volumes.outputs.claimName }}
      persistentVolumeClaim: {claimName: {{ $values.volumes.outputs.claimName | quote }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- range $name, $volume := omit $values.volumes "outputs" }}
    {{- if .claimName }}
    - name: {{ $name }}
      persistentVolumeClaim: {claimName: {{ .claimName | quote }}, readOnly: {{ .readOnly }}}
    {{- end }}
    {{- end }}
    {{- include "ddp-run.programsVolume" .root | nindent 4 }}
    {{- if $parks }}
    - name: attempts
      emptyDir: {sizeLimit: 1Mi}
    {{- end }}
    {{- with include "ddp-run.keyVolume" .root }}{{ . | nindent 4 }}{{ end }}
{{- end }}

{{- define "ddp-run.renderPods" -}}
{{- $pod := include "ddp-run.pod" (dict "root" . "id" (include "ddp-run.id" .)) }}
{{- $_ := set .pods "" (include "ddp-run.withTemplate" (dict
  "pod" $pod "own" .Values.podTemplate "path" "podTemplate" "env" .Values.env)) }}
{{- end }}

{{/* Pod template of the nodes. */}}
{{- define "ddp-run.podTemplate" -}}
{{- include "ddp-run.pods" . }}
{{- get .pods "" }}
{{- end }}

{{- define "ddp-run.placement" -}}
{{- $values := .root.Values }}
{{- $own := include "ddp-run.nodeLabels" .root | fromYaml | toJson }}
{{- /* On the node's own network a second pod would find the ports taken. */}}
{{- $apart := include "ddp-run.hostNetwork" .root | empty | ternary $values.placement.onePodPerNode
  "required" -}}
affinity:
{{- with $values.placement.topologyKey }}
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: {{ . | quote }}
        labelSelector: {matchLabels: {{ $own }}}
{{- end }}
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      # A run starts when no pod of an earlier one is left on any node: both would write to one
      # /out.
      - topologyKey: kubernetes.io/os
        labelSelector:
          matchLabels: {{ $own }}
          matchExpressions: [{key: ddp-run/id, operator: NotIn, values: [{{ .id | quote }}]}]
{{- if eq $apart "required" }}
      - topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {{ $own }}}
{{- else if eq $apart "preferred" }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector: {matchLabels: {{ $own }}}
{{- end }}
{{- end }}

