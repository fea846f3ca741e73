{{/* Name of this version of the run: a changed run is a new Job, because a Job's pods cannot be changed. */}}
{{- define "ddp-run.id" -}}
{{ include "common.fullname" . }}-{{ include "ddp-run.job" (dict "root" . "id" "") | sha256sum | trunc 8 }}
{{- end }}

{{- define "ddp-run.args" -}}
{{- $preset := .Files.Get (printf "files/presets/%s.yaml" .Values.program.preset) | fromYaml -}}
{{- range .Values.program.args | default $preset.args }}
{{- /* Kubernetes would expand $(NAME) and halve $$; users mean what they wrote. */}}
- {{ . | replace "$" "$$" | quote }}
{{- end -}}
{{- end }}

{{/* Spec of the Indexed Job; call with root and id. */}}
{{- define "ddp-run.job" -}}
{{- $values := .root.Values -}}
{{- $gpus := $values.gpusPerNode | int -}}
completionMode: Indexed
completions: {{ $values.nodes | int64 }}
parallelism: {{ $values.nodes | int64 }}
# One lost rank ends the world, so one failed pod ends the Job: the others would only wait for it.
backoffLimit: 0
podReplacementPolicy: Failed
template:
  metadata:
    labels:
      {{- include "common.selectorLabels" .root | nindent 6 }}
  spec:
    restartPolicy: Never
    subdomain: {{ include "common.fullname" .root }}
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
    affinity:
      podAntiAffinity:
        # One pod a node where there is room; a pod that needs all GPUs of a node gets one anyway.
        preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  {{- include "common.selectorLabels" .root | nindent 18 }}
    containers:
      - name: trainer
        image: {{ include "common.image" .root }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command: [tini, --, ddp-launch]
        args:
          - --deadline={{ $values.rendezvous.timeoutSeconds | int64 }}
          - --
          {{- include "ddp-run.args" .root | trim | nindent 10 }}
        env:
          {{- include "ddp-run.env" . | trim | nindent 10 }}
        {{- $resources := deepCopy $values.resources }}
        {{- if $gpus }}
        {{- $_ := set $resources "limits" (merge (dict $values.gpuResourceName $gpus) ($resources.limits | default dict)) }}
        {{- end }}
        {{- with $resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        ports:
          - {name: rendezvous, containerPort: {{ $values.rendezvous.port | int64 }}}
        terminationMessagePolicy: FallbackToLogsOnError
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          - {name: reports, mountPath: /reports}
          - {name: tmp, mountPath: /tmp}
          - {name: shared-memory, mountPath: /dev/shm}
    volumes:
      - name: reports
        emptyDir: {}
      - name: tmp
        emptyDir: {}
      - name: shared-memory
        emptyDir:
          medium: Memory
          sizeLimit: {{ $values.sharedMemory.sizeLimit }}
{{- end }}

{{/* The environment contract. */}}
{{- define "ddp-run.env" -}}
{{- $values := .root.Values }}
{{- $nodes := $values.nodes | int64 }}
{{- $gpus := $values.gpusPerNode | int64 }}
{{- $procs := $values.procsPerNode | default (max 1 $gpus) | int64 }}
{{- $master := printf "%s-0.%s.%s.svc.%s" .id (include "common.fullname" .root) .root.Release.Namespace $values.clusterDomain }}
{{- $port := $values.rendezvous.port | int64 }}
{{- range $name := list "NODE_RANK" "PET_NODE_RANK" "RANK" }}
- {name: {{ $name }}, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}
{{- end }}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- $contract := dict
  "NNODES" $nodes "NPROC_PER_NODE" $procs "MASTER_ADDR" $master "MASTER_PORT" $port
  "PET_NNODES" $nodes "PET_NPROC_PER_NODE" $procs "PET_MASTER_ADDR" $master "PET_MASTER_PORT" $port
  "NUM_NODES" $nodes "NUM_GPUS_PER_NODE" $gpus "RUN_ID" .id "ATTEMPT" "0" }}
{{- range $name, $value := merge (deepCopy $values.env) $contract }}
{{- /* Kubernetes would expand $(NAME) and halve $$ in a value; users mean what they wrote. */}}
- {name: {{ $name }}, value: {{ $value | toString | replace "$" "$$" | quote }}}
{{- end }}
{{- end }}
