{{/* Pod template of the collector of the reports. */}}
{{- define "gpu-accept.fleetPod" -}}
metadata:
  labels:
    {{- include "gpu-accept.fleetLabels" . | nindent 4 }}
    {{- include "gpu-accept.helperLabels" . | trim | nindent 4 }}
  {{- if not .Values.fleet.claimName }}
  annotations:
    {{- include "gpu-accept.noEviction" . | nindent 4 }}
  {{- end }}
spec:
  {{- $lists := include "gpu-accept.listsPods" . | empty | not }}
  {{- if $lists }}
  serviceAccountName: {{ include "gpu-accept.fullname" . }}-fleet
  {{- end }}
  {{- include "gpu-accept.podFields" (dict "root" . "token" $lists) | nindent 2 }}
  containers:
    - name: fleet
      {{- include "gpu-accept.fleetContainer" . | nindent 6 }}
      resources: {requests: {cpu: 50m, memory: 256Mi}, limits: {cpu: "2", memory: 1Gi}}
      command: [/programs/accept-report, serve]
      args:
        - --run-id={{ include "gpu-accept.runId" . }}
        - --name={{ .Release.Namespace }}/{{ .Release.Name }}
        {{- include "gpu-accept.requested" . | nindent 8 }}
        {{- include "gpu-accept.expected" . | indent 8 }}
        {{- if $lists }}
        - --list-pods=app.kubernetes.io/component=node,app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/name={{ .Chart.Name }}
        {{- end }}
        {{- if ne .Values.nodeActions "none" }}
        - --node-actions={{ .Values.nodeActions }}
        {{- if .Values.nodeActionsDryRun }}
        - --dry-run
        {{- end }}
        {{- end }}
        {{- if eq .Values.workload "daemonset" }}
        - --stay
        {{- else if .Values.patrol.schedule }}
        - --patrol
        {{- end }}
        {{- if .Values.world.enabled }}
        - --world
        {{- end }}
        {{- if .Values.fleet.claimName }}
        # Of this run and installation, because several may share a claim.
        - --report-dir=/reports/{{ include "gpu-accept.fullname" . }}/{{ include "gpu-accept.runId" . }}
        - --service={{ include "gpu-accept.fullname" . }}-fleet
        {{- else }}
        - --report-dir=/reports
        {{- end }}
      {{- with include "gpu-accept.keyEnv" . }}{{ . | nindent 6 }}{{ end }}
      ports:
        - {name: http, containerPort: {{ (include "gpu-accept.contract" . |
          fromJson).ports.report }}}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 2
        timeoutSeconds: 5
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        timeoutSeconds: 5
      volumeMounts:
        - {name: reports, mountPath: /reports}
        - {name: tmp, mountPath: /tmp}
        - {name: programs, mountPath: /programs, readOnly: true}
        {{- with include "gpu-accept.keyMount" . }}{{ . | nindent 8 }}{{ end }}
  volumes:
    - name: reports
      {{- if .Values.fleet.claimName }}
      persistentVolumeClaim: {claimName: {{ .Values.fleet.claimName | quote }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- include "gpu-accept.programsVolume" . | nindent 4 }}
    {{- with include "gpu-accept.keyVolume" . }}{{ . | nindent 4 }}{{ end }}
{{- end }}
