{{/* Container that runs the checks across nodes, after the init container has tested this node.
*/}}
{{- define "gpu-accept.world" -}}
{{- $values := .Values -}}
- name: world
  {{- $address := dict "POD_IP" (dict "valueFrom"
    (dict "fieldRef" (dict "fieldPath" "status.podIP"))) }}
  {{- $set := merge $address (include "gpu-accept.keyVariable" . | fromYaml) }}
  {{- include "gpu-accept.tester" (dict "root" . "set" $set) | nindent 2 }}
  command: [/programs/accept-report, world]
  args:
    - --to=http://{{ include "gpu-accept.fullname" . }}-fleet
    - --run-id={{ include "gpu-accept.runId" . }}
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
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: programs, mountPath: /programs, readOnly: true}
    - {name: shared-memory, mountPath: /dev/shm}
    {{- with include "gpu-accept.keyMount" . }}{{ . | nindent 4 }}{{ end }}
{{- end }}
