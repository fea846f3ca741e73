{{/* Container that runs the checks across nodes, after the init container has tested this node. */}}
{{- define "gpu-accept.world" -}}
{{- $values := .Values -}}
- name: world
  image: {{ include "gpu-accept.image" . | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  command: [/programs/accept-report, world]
  args:
    - --to=http://{{ include "gpu-accept.fullname" . }}-fleet
    - --run-id={{ $values.runId }}
    - --node=$(NODE_NAME)
    - --address=$(POD_IP)
    - --ranks={{ include "gpu-accept.gpus" . | int | default 1 }}
    {{- if eq $values.workload "daemonset" }}
    - --stay
    {{- else }}
    - --timeout={{ include "gpu-accept.deadline" . }}
    {{- end }}
    - --
    - --device={{ $values.device }}
    {{- range $values.world.checks }}
    - --{{ replace "_" "-" . }}
    {{- end }}
    {{- range $values.world.args }}
    - {{ quote . }}
    {{- end }}
  {{- $address := dict "POD_IP" (dict "valueFrom" (dict "fieldRef" (dict "fieldPath" "status.podIP"))) }}
  env:
    {{- $set := merge $address (include "gpu-accept.variables" . | fromYaml) (include "gpu-accept.keyVariable" . | fromYaml) }}
    {{- include "gpu-accept.environment" (dict "root" . "set" $set "env" $values.env) | trim | nindent 4 }}
  {{- $devices := dict $values.gpuResourceName (list "gpusPerNode" (include "gpu-accept.gpus" .)) }}
  {{- with include "gpu-accept.resources" (dict "resources" $values.resources "devices" $devices "path" "resources") }}
  resources:
    {{- . | nindent 4 }}
  {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  securityContext:
    {{- toYaml ($values.containerSecurityContext | default dict) | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: programs, mountPath: /programs, readOnly: true}
    - {name: shared-memory, mountPath: /dev/shm}
    {{- with include "gpu-accept.keyMount" . }}{{ . | nindent 4 }}{{ end }}
{{- end }}
