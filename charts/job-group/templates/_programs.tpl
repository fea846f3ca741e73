{{/* Copy of charts/shared/_programs.tpl. Name of the ConfigMap with the programs: another content
is another object. The archive is no .zip, because Flux leaves such files out of what it gets from
git. */}}
{{- define "job-group.programs" -}}
{{- $archive := .Files.Get "files/programs.pyz" | required "the chart lacks files/programs.pyz" }}
{{- include "job-group.fullname" . }}-programs-{{ $archive | sha256sum | trunc 8 }}
{{- end }}

{{/* Volume with the programs. */}}
{{- define "job-group.programsVolume" -}}
- name: programs
  configMap:
    name: {{ include "job-group.programs" . | quote }}
    defaultMode: 0555
{{- end }}

{{/* Reference of `image`, which has torch: without a repository PyTorch's public image. */}}
{{- define "job-group.image" -}}
{{- $public := include "job-group.mirrored" (list .
  "docker.io/pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime") -}}
{{- include "job-group.reference" (merge (dict "path" "image" "version"
  (.Chart.AppVersion | replace "+" "_")) .Values.image) | default $public -}}
{{- end }}

{{/* A public image, from global.imageRegistry if that is set; call with root and the image's
reference. */}}
{{- define "job-group.mirrored" -}}
{{- $registry := dig "global" "imageRegistry" ""
  (dict "global" ((first .).Values.global | default dict)) -}}
{{ $registry | empty | ternary (last .) (printf "%s/%s" (trimSuffix "/" $registry)
  (regexReplaceAll "^[^/]+[.:][^/]*/" (last .) "")) }}
{{- end }}

{{/* Reference of an image, or nothing; call with an image, its path, and version in place of an
empty tag. */}}
{{- define "job-group.reference" -}}
{{- if .repository -}}
{{- if not (regexMatch (printf "^%s$" (include "job-group.repository" .)) .repository) -}}
{{- $help := printf "%s:\n  repository: registry.example.com/gpu-worker\n  tag: %q" .path
  .version -}}
{{- fail (printf "\n\n%s.repository: %q is no name of a repository. Tag and digest have values:\n\n%s\n"
  .path .repository $help) -}}
{{- end -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default .version }}{{ end -}}
{{- end -}}
{{- end }}
