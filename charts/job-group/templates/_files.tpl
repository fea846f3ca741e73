{{/* The group's ConfigMap: the plan for the agents, the scripts of the users, their files. */}}

{{/* Something if nothing may be mounted at the path `place`; call with reserved, too. Volumes in
/tmp and /dev are usual. */}}
{{- define "job-group.isReserved" -}}
{{- $place := .place -}}
{{- range .reserved -}}
{{- $holds := not (regexMatch "^/(tmp|dev)$" .) -}}
{{- if or (has $place (list . "/")) (and $holds (hasPrefix (printf "%s/" .) $place)) }}yes{{ end -}}
{{- end -}}
{{- end }}

{{/* Data of the ConfigMap with scripts. Text of users goes into files, never into a command line.
*/}}
{{- define "job-group.scripts" -}}
{{- $files := dict "entry.sh" (.Files.Get "files/entry.sh") "askpass.sh"
  (.Files.Get "files/askpass.sh") -}}
{{- $_ := set $files "group.json" (include "job-group.plan" .) -}}
{{- range $name, $task := .Values.tasks -}}
{{- $_ := set $files (printf "%s.setup" $name) ($task.setup | default "") -}}
{{- $_ := set $files (printf "%s.run" $name) ($task.run | default "") -}}
{{- $_ := set $files (printf "%s.files" $name)
  (include "job-group.copies" (dict "root" $ "task" $task)) -}}
{{- with dig "workdir" "git" nil $task -}}
{{- $_ := set $files (printf "%s.git" $name) (printf "%s\n%s\n" .url (.ref | default "")) -}}
{{- end -}}
{{- end -}}
{{- include "job-group.data" (dict "text" $files "binary" dict) -}}
{{- end }}

{{/* Plan of the group for its agents, as JSON. */}}
{{- define "job-group.plan" -}}
{{- $tasks := dict -}}
{{- range $name, $task := .Values.tasks -}}
{{- $_ := set $tasks $name (dict
  "numNodes" ($task.numNodes | default 1 | int)
  "primary" (or (not $.Values.primaryTasks) (has $name $.Values.primaryTasks))
  "dependsOn" ($task.dependsOn | default dict)) -}}
{{- end -}}
{{- dict "domain" (include "job-group.domain" .) "timeoutSeconds"
  (.Values.timeouts.joinSeconds | int64)
  "onFailure" .Values.onFailure "workload" .Values.workload "tasks" $tasks | toJson -}}
{{- end }}

{{/*
List of the files that the entry script copies from /group/files, two lines per file: mode and key,
target. Single files outside of the home folder are mounted instead.
*/}}
{{- define "job-group.copies" -}}
{{- $root := .root -}}
{{- $lines := list -}}
{{- $mounts := .task.fileMounts | default list -}}
{{- with dig "workdir" "files" "" .task -}}
{{- $mounts = prepend $mounts (dict "mountPath" "~/sky_workdir" "files" .) -}}
{{- end -}}
{{- range $mount := $mounts -}}
{{- $set := index $root.Values.files .files | default dict -}}
{{- range $index, $path := keys $set | sortAlpha -}}
{{- $mode := ternary "755" "644" (dig $path "executable" false $set) -}}
{{- $key := printf "%s %s.%d\n" $mode $mount.files $index -}}
{{- if not $mount.subPath -}}
{{- $lines = append $lines (printf "%s%s/%s\n" $key $mount.mountPath $path) -}}
{{- else if and (eq $path $mount.subPath) (hasPrefix "~/" $mount.mountPath) -}}
{{- $lines = append $lines (printf "%s%s\n" $key $mount.mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join "" $lines -}}
{{- end }}

{{/* Data of the ConfigMap with embedded files: the n-th file of a set, by path, has the key SET.n
*/}}
{{- define "job-group.files" -}}
{{- $text := dict -}}
{{- $binary := dict -}}
{{- range $name, $set := .Values.files -}}
{{- range $index, $path := keys $set | sortAlpha -}}
{{- $file := index $set $path -}}
{{- $key := printf "%s.%d" $name $index -}}
{{- if hasKey $file "base64" -}}
{{- $_ := set $binary $key $file.base64 -}}
{{- else -}}
{{- $_ := set $text $key $file.text -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "job-group.data" (dict "text" $text "binary" $binary) -}}
{{- end }}

{{/*
Data of a ConfigMap; call with text by key, and binary by key in base64. Text with a character that
YAML cannot represent becomes binary, because toYaml would return an empty text for the whole map,
without an error.
*/}}
{{- define "job-group.data" -}}
{{- $text := dict -}}
{{- $binary := .binary -}}
{{- range $key, $content := .text -}}
{{- if regexMatch "[\u007f-\u009f\ufffe\uffff]" $content -}}
{{- $_ := set $binary $key (b64enc $content) -}}
{{- else -}}
{{- $_ := set $text $key $content -}}
{{- end -}}
{{- end -}}
{{- with $text }}
data:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $binary }}
binaryData:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
