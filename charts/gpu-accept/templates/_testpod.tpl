{{/* Pod template of `helm test`. */}}
{{- define "gpu-accept.testPod" -}}
metadata:
  labels:
    {{- include "gpu-accept.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/component: test
    {{- include "gpu-accept.helperLabels" . | trim | nindent 4 }}
spec:
  restartPolicy: Never
  {{- $tolerations := concat (.Values.tolerations | default list) (.Values.fleet.tolerations | default list) | uniq }}
  {{- include "gpu-accept.podFields" (dict "root" . "nodeSelector" .Values.fleet.nodeSelector "tolerations" $tolerations) | nindent 2 }}
  containers:
    - name: verdict
      image: {{ include "gpu-accept.helperImage" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [/programs/accept-report, await]
      args:
        - http://{{ include "gpu-accept.fullname" . }}-fleet
        - --timeout={{ include "gpu-accept.deadline" . }}
      terminationMessagePolicy: FallbackToLogsOnError
      resources:
        {{- $resources := .Values.fleet.resources | default (dict "requests" (dict "cpu" "10m" "memory" "64Mi") "limits" (dict "cpu" "1" "memory" "256Mi")) }}
        {{- include "gpu-accept.resources" (dict "resources" $resources "devices" dict) | nindent 8 }}
      securityContext:
        {{- toYaml (.Values.containerSecurityContext | default dict) | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: programs, mountPath: /programs, readOnly: true}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- include "gpu-accept.programsVolume" . | nindent 4 }}
{{- end }}
