{{/* Pod template of `helm test`. */}}
{{- define "gpu-accept.testPod" -}}
metadata:
  labels:
    {{- include "gpu-accept.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/component: test
    {{- include "gpu-accept.helperLabels" . | trim | nindent 4 }}
spec:
  restartPolicy: Never
  {{- include "gpu-accept.podFields" (dict "root" .) | nindent 2 }}
  containers:
    - name: verdict
      {{- include "gpu-accept.fleetContainer" . | nindent 6 }}
      resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {cpu: "1", memory: 256Mi}}
      command: [/programs/accept-report, await]
      args:
        - http://{{ include "gpu-accept.fullname" . }}-fleet
        - --timeout={{ include "gpu-accept.deadline" . }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: programs, mountPath: /programs, readOnly: true}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- include "gpu-accept.programsVolume" . | nindent 4 }}
{{- end }}
