{{/* Pod template of etcd. */}}
{{- define "ddp-run.etcdPod" -}}
metadata:
  labels:
    {{- include "ddp-run.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/component: etcd
    {{- include "ddp-run.helperLabels" . | trim | nindent 4 }}
  annotations:
    {{- include "ddp-run.noEviction" . | nindent 4 }}
spec:
  {{- include "ddp-run.podFields" (dict "root" .) | nindent 2 }}
  containers:
    - name: etcd
      image: {{ include "ddp-run.mirrored" (list . .Values.rendezvous.etcd.image) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [etcd]
      args:
        - --enable-v2=true
        - --data-dir=/data/etcd
        - --listen-client-urls=http://[::]:2379 # IPv6 and IPv4
        # Clients reconnect to what is advertised, so it must be a name that pods can reach.
        - --advertise-client-urls=http://{{ include "ddp-run.etcd" . }}
      ports:
        - {name: client, containerPort: 2379}
      readinessProbe:
        httpGet: {path: /health, port: client}
        periodSeconds: 2
      resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {cpu: "1", memory: 512Mi}}
      {{- include "ddp-run.container" . | nindent 6 }}
      volumeMounts:
        - {name: data, mountPath: /data}
  volumes:
    - name: data
      emptyDir: {}
{{- end }}
