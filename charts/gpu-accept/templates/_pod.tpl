{{/* Pod template: an init container tests the node, the other container has the report. */}}
{{- define "gpu-accept.pod" -}}
{{- $values := .Values -}}
{{- $once := eq $values.workload "job" -}}
metadata:
  labels:
    {{- include "gpu-accept.nodeLabels" . | nindent 4 }}
    # The sidecar of a service mesh would have no end, and init containers would have no network
    # before its start.
    sidecar.istio.io/inject: "false"
  {{- if $once }}
  annotations:
    {{- include "gpu-accept.noEviction" . | nindent 4 }}
  {{- end }}
spec:
  restartPolicy: Never
  {{- /* A node that is marked can be tested again. */}}
  {{- $marked := `- {key: gpu-accept/unfit, operator: Exists}
- {key: node.kubernetes.io/unschedulable, operator: Exists}` }}
  {{- $tolerations := eq $values.nodeActions "none" | ternary "" $marked }}
  {{- include "gpu-accept.podFields" (dict "root" . "nodeSelector" $values.nodeSelector
    "tolerations" $tolerations) | nindent 2 }}
  {{- if $values.patrol.schedule }}
  terminationGracePeriodSeconds: 5 # a job that needs the node waits no longer
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- $nodeAffinity := include "gpu-accept.nodeAffinity" . }}
  {{- if or $once $nodeAffinity }}
  affinity:
    {{- with $nodeAffinity }}{{ . | nindent 4 }}{{ end }}
    {{- if $once }}
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "gpu-accept.nodeLabels" . | nindent 14 }}
    {{- end }}
  {{- end }}
  initContainers:
    # A DaemonSet starts its containers again for ever. An init container that succeeds runs once,
    # so this one succeeds whatever it finds, and the report says what that was.
    - name: accept
      {{- include "gpu-accept.tester" (dict "root" . "set" dict) | nindent 6 }}
      command: [/programs/accept-node]
      args:
        {{- include "gpu-accept.args" . | nindent 8 }}
      volumeMounts:
        - {name: reports, mountPath: /reports}
        - {name: tmp, mountPath: /tmp}
        - {name: programs, mountPath: /programs, readOnly: true}
        - {name: shared-memory, mountPath: /dev/shm}
        {{- if $values.volumes.outputs.claimName }}
        - {name: outputs, mountPath: /out}
        {{- end }}
        {{- if $values.volumes.datasets.claimName }}
        - {name: datasets, mountPath: /data, readOnly: true}
        {{- end }}
  containers:
    - name: report
      image: {{ include "gpu-accept.helperImage" . | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      # Hands the report to the page. In a Job it then ends with the verdict, which frees the GPUs.
      command: [/programs/accept-report, submit]
      args:
        - /reports/report.json
        - --to=http://{{ include "gpu-accept.fullname" . }}-fleet/reports
        {{- if not $once }}
        - --stay
        - --ready=/tmp/passed
      # Ready means that the node passed. The readiness of the fleet's Deployment is that of all
      # nodes.
      readinessProbe:
        exec: {command: [test, -e, /tmp/passed]}
        periodSeconds: 2
        {{- end }}
      {{- with include "gpu-accept.keyEnv" . }}{{ . | nindent 6 }}{{ end }}
      {{- /* What the tests get, which costs nothing: quotas accept it. A queue may know no CPU, so
      a Job asks for none. */}}
      {{- $idle := dict "requests" (dict "cpu" "10m" "memory" "64Mi") }}
      {{- $report := $values.resources | default ($once | ternary dict $idle) }}
      {{- if and $values.world.enabled
        $values.resources }}{{- /* The container `world` has them. */}}
      {{- $report = merge (dict "limits" (dict "cpu" "100m" "memory" "256Mi")) $idle }}
      {{- end }}
      {{- with include "gpu-accept.resources" (dict "resources" $report "devices" dict "path"
        "resources") }}
      resources:
        {{- . | nindent 8 }}
      {{- end }}
      {{- include "gpu-accept.container" . | nindent 6 }}
      volumeMounts:
        - {name: reports, mountPath: /reports, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        - {name: programs, mountPath: /programs, readOnly: true}
        {{- with include "gpu-accept.keyMount" . }}{{ . | nindent 8 }}{{ end }}
    {{- if $values.world.enabled }}
    {{- include "gpu-accept.world" . | nindent 4 }}
    {{- end }}
  volumes:
    - name: reports
      emptyDir: {}
    - name: tmp
      emptyDir: {}
    {{- include "gpu-accept.programsVolume" . | nindent 4 }}
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ $values.sharedMemory.sizeLimit }}
    {{- with include "gpu-accept.keyVolume" . }}{{ . | nindent 4 }}{{ end }}
    {{- with $values.volumes.outputs.claimName }}
    - name: outputs
      persistentVolumeClaim: {claimName: {{ . | quote }}}
    {{- end }}
    {{- with $values.volumes.datasets.claimName }}
    - name: datasets
      persistentVolumeClaim: {claimName: {{ . | quote }}, readOnly: true}
    {{- end }}
{{- end }}

{{- define "gpu-accept.renderPods" -}}
{{- $_ := set .pods "" (include "gpu-accept.withTemplate" (dict
  "pod" (include "gpu-accept.pod" .) "own" .Values.podTemplate "path" "podTemplate" "env" .Values.env)) }}
{{- end }}

{{/* Pod template of the tested nodes. */}}
{{- define "gpu-accept.podTemplate" -}}
{{- include "gpu-accept.pods" . }}
{{- get .pods "" }}
{{- end }}

{{/* Variables that the chart sets, as a YAML map. */}}
{{- define "gpu-accept.variables" -}}
POD_NAME: {valueFrom: {fieldRef: {fieldPath: metadata.name}}}
NODE_NAME: {valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
HOME: /tmp
{{- end }}
