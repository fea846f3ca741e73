{{/* Volume mounts of a task; call with what `job-group.job` has. */}}
{{- define "job-group.volumeMounts" -}}
{{- $values := .root.Values }}
{{- $task := .task }}
{{- range $index, $volume := $task.volumes }}
- name: volume-{{ $index }}
  mountPath: {{ regexReplaceAll "^~/" .mountPath "/group/home/" | quote }}
  {{- with .subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if .readOnly }}
  readOnly: true
  {{- end }}
{{- end }}
{{- if or $task.fileMounts (dig "workdir" "files" "" $task) }}
- {name: files, mountPath: /group/files, readOnly: true}
{{- end }}
{{- range $index, $mount := $task.fileMounts }}
{{- if hasPrefix "~/" .mountPath }}
{{- else if .subPath }}
{{- $key := 0 }}
{{- range $number, $path := keys (index $values.files .files) | sortAlpha }}
{{- if eq $path $mount.subPath }}{{ $key = $number }}{{ end }}
{{- end }}
- {name: files, mountPath: {{ .mountPath | quote }}, subPath: {{ .files }}.{{ $key }}, readOnly: true}
{{- else }}
- {name: folder-{{ $index }}, mountPath: {{ .mountPath | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Volumes of a task. A folder of files is a copy that the task may change. */}}
{{- define "job-group.volumes" -}}
{{- $task := .task }}
{{- range $index, $volume := $task.volumes }}
- name: volume-{{ $index }}
  {{- if .claimName }}
  persistentVolumeClaim:
    claimName: {{ .claimName | quote }}
    {{- if .readOnly }}
    readOnly: true # a disk of many nodes can be attached in no other way
    {{- end }}
  {{- else }}
  ephemeral:
    volumeClaimTemplate:
      {{- with .labels }}
      metadata:
        labels:
          {{- toYaml . | nindent 10 }}
      {{- end }}
      spec:
        accessModes: [{{ .accessMode | default "ReadWriteOnce" }}]
        {{- with .storageClassName }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources:
          requests:
            storage: {{ .size | quote }}
  {{- end }}
{{- end }}
{{- if or $task.fileMounts (dig "workdir" "files" "" $task) }}
- name: files
  configMap:
    name: {{ .id }}-files
    defaultMode: 0755 # a single file that is mounted may be a program; copies get the modes of their entries
{{- end }}
{{- range $index, $mount := $task.fileMounts }}
{{- if not (or (hasPrefix "~/" .mountPath) .subPath) }}
- name: folder-{{ $index }}
  emptyDir: {}
{{- end }}
{{- end }}
{{- end }}
