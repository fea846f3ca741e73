{{/*
Put the pod templates of the release into .pods of the root, a map of name to YAML, once: it takes
long. A check Job has them as they are, so none starts again for ever; what does (CHART.endless)
leaves out their restartPolicy.
*/}}
{{- define "CHART.pods" -}}
{{- if not (hasKey . "pods") }}
{{- $_ := set . "pods" dict }}
{{- include "CHART.renderPods" . }}
{{- end }}
{{- end }}

{{- define "CHART.endless" -}}
{{ replace "\n  restartPolicy: Never" "" . }}
{{- end }}

{{/*
Pod template `pod`, YAML, with the user's podTemplate `own` merged over it; call with pod, own, its
path, and env, the variables of the user that win over those of `own`. `containers[0]` is merged
into the chart's first container, and an init container into the one of its name.
*/}}
{{- define "CHART.withTemplate" -}}
{{- if not .own -}}
{{ .pod }}
{{- else -}}
{{- $pod := fromYaml .pod }}
{{- $keys := (include "CHART.contract" . | fromJson).mergeKeys }}
{{- $spec := .own.spec | default dict }}
{{- range $volume := $spec.volumes }}
{{- if has $volume.name (list "agent" "attempts" "files" "key" "programs" "reports" "scripts"
  "state") }}
{{- fail (printf "\n\n%s.spec.volumes: %s is a volume of the chart. Choose another name.\n" $.path
  $volume.name) }}
{{- end }}
{{- end }}
{{- $first := omit (first ($spec.containers | default (list dict))) "name" }}
{{- $variables := list }}
{{- range $first.env }}
{{- if not (hasKey ($.env | default dict) .name) }}{{ $variables = append $variables . }}{{ end }}
{{- end }}
{{- if $first.env }}{{ $_ := set $first "env" $variables }}{{ end }}
{{- include "CHART.merge" (dict "keys" $keys "base" (first $pod.spec.containers) "over" $first) }}
{{- $ours := dict }}
{{- range $pod.spec.initContainers }}{{ $_ := set $ours .name . }}{{ end }}
{{- $more := list }}
{{- range $spec.initContainers }}
{{- if hasKey $ours (.name | default "") }}
{{- include "CHART.merge" (dict "keys" $keys "base" (get $ours .name) "over" .) }}
{{- else }}
{{- $more = append $more . }}
{{- end }}
{{- end }}
{{- include "CHART.merge" (dict "keys" $keys "base" $pod.spec "over"
  (omit $spec "containers" "initContainers")) }}
{{- with $more }}
{{- $_ := set $pod.spec "initContainers" (concat ($pod.spec.initContainers | default list) .) }}
{{- end }}
{{- if and $pod.spec.hostNetwork (not $spec.dnsPolicy) }}
{{- /* With ClusterFirst such a pod asks its node's name server, which knows no Service. */}}
{{- $_ := set $pod.spec "dnsPolicy" "ClusterFirstWithHostNet" }}
{{- end }}
{{- include "CHART.merge" (dict "keys" $keys "base" $pod "over"
  (dict "metadata" ($.own.metadata | default dict))) }}
{{- /* A JobSet takes amounts as integers or text, so a fraction becomes text. */}}
{{- range $container := concat $pod.spec.containers ($pod.spec.initContainers | default list) }}
{{- range $kind := list "requests" "limits" }}
{{- range $name, $amount := dig "resources" $kind dict $container }}
{{- if and (kindIs "float64" $amount) (ne $amount (floor $amount)) }}
{{- $_ := set (index $container.resources $kind) $name (toString $amount) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $text := toYaml $pod }}
{{- if not $text }}
{{- fail (printf "\n\n%s: a text in it or in env has a control character. YAML has none: remove it.\n" .path) }}
{{- end }}
{{- $text }}
{{- end }}
{{- end }}

{{/*
Merge `over` into `base`, which is changed: maps merge, lists append, every other value of `over`
wins. Where Kubernetes has keys for the entries of a list, an entry of `over` replaces the one of
its keys; `keys` has them by the name of the list. A node must fit one of the node selector terms of
each.
*/}}
{{- define "CHART.merge" -}}
{{- range $key, $value := .over }}
{{- $ours := index $.base $key }}
{{- $lists := and (kindIs "slice" $value) (kindIs "slice" $ours) }}
{{- if and (kindIs "map" $value) (kindIs "map" $ours) }}
{{- include "CHART.merge" (dict "keys" $.keys "base" $ours "over" $value) }}
{{- else if and $lists (eq $key "nodeSelectorTerms") }}
{{- $terms := list }}
{{- range $our := $ours }}
{{- range $value }}
{{- $term := deepCopy . }}
{{- range $part := list "matchExpressions" "matchFields" }}
{{- with concat (get $our $part | default list) (get $term $part | default list) }}
{{- $_ := set $term $part . }}
{{- end }}
{{- end }}
{{- $terms = append $terms $term }}
{{- end }}
{{- end }}
{{- $_ := set $.base $key $terms }}
{{- else if $lists }}
{{- $fields := get $.keys $key }}
{{- $replaced := list }}
{{- if $fields }}
{{- range $value }}
{{- $replaced = append $replaced (include "CHART.entryKey" (list . $fields)) }}
{{- end }}
{{- end }}
{{- $list := list }}
{{- range $ours }}
{{- $taken := and $fields (has (include "CHART.entryKey" (list . $fields)) $replaced) }}
{{- if not $taken }}{{ $list = append $list . }}{{ end }}
{{- end }}
{{- $_ := set $.base $key (concat $list $value) }}
{{- else }}
{{- $_ := set $.base $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Key of an entry of a list; call with the entry and the names of its fields. */}}
{{- define "CHART.entryKey" -}}
{{- $entry := merge dict (first .) (dict "protocol" "TCP") }}
{{- range last . }}{{ get $entry . }}{{ "\n" }}{{ end }}
{{- end }}

{{/*
Refuse what the chart must know or start by itself; call with root, path, own, which says where the
command belongs (run), image, the value of the program's image (none: any image will do), gpu and
gpus, the resource of a GPU and the value of their number, and task, the path of a task that has the
variables. The schema refuses fields that no value may change.
*/}}
{{- define "CHART.refusePodTemplate" -}}
{{- range $kind := list "containers" "initContainers" }}
{{- range $index, $container := index (dig "spec" dict $.own) $kind }}
{{- $path := printf "%s.spec.%s[%d]" $.path $kind $index }}
{{- $program := eq $kind "containers" }}
{{- $ours := or $program (has .name (list "accept" "agent")) }}
{{- range $field := list "command" "args" "image" }}
{{- $free := and $program (eq $field "image") (not $.image) }}
{{- $instead := and $program (eq $field "image") | ternary (printf "Set %s." ($.image | default ""))
  $.run }}
{{- if and $ours (hasKey $container $field) (not $free) }}
{{- fail (printf "\n\n%s.%s: the chart starts this container. Remove it. %s\n" $path $field
  $instead) }}
{{- end }}
{{- end }}
{{- range $amounts := list "requests" "limits" }}
{{- if hasKey (dig "resources" $amounts dict $container) $.gpu }}
{{- fail (printf "\n\n%s.resources.%s: the number of %s is a value of its own: set %s.\n" $path
  $amounts $.gpu $.gpus) }}
{{- end }}
{{- end }}
{{- $env := dict }}
{{- range $container.env }}{{ $_ := set $env .name (.value | default "…") }}{{ end }}
{{- include "CHART.refuseReserved" (dict "root" $.root "path" (printf "%s.env" $path) "task" $.task
  "env" $env) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Refuse a program that counts on GPUs and gets none; call with count, resource, its value, and
the program's container. */}}
{{- define "CHART.refuseNoGpus" -}}
{{- if and .count (not .resource) (not (dig "resources" "claims" nil .container)) -}}
{{- fail (printf "\n\n%s is empty, so the GPUs come from a claim. %s %s.\n" .value
  "Name one in resources.claims of the container" .container.name) -}}
{{- end -}}
{{- end }}
