{{/*
Put the pod templates of the release into .pods of the root, a map of name to YAML, once: it takes long. A check Job has
them as they are, so none starts again for ever; what does (CHART.endless) leaves out their restartPolicy.
*/}}
{{- define "ddp-run.pods" -}}
{{- if not (hasKey . "pods") }}
{{- $_ := set . "pods" dict }}
{{- include "ddp-run.renderPods" . }}
{{- end }}
{{- end }}

{{- define "ddp-run.endless" -}}
{{ replace "\n  restartPolicy: Never" "" . }}
{{- end }}

{{/*
Pod template `pod`, YAML, with the user's podTemplate `own` merged over it; call with pod, own, its path, and env, the
variables of the user that win over those of `own`.
`containers[0]` is merged into the chart's first container, and an init container into the one of its name.
*/}}
{{- define "ddp-run.withTemplate" -}}
{{- if not .own -}}
{{ .pod }}
{{- else -}}
{{- $pod := fromYaml .pod }}
{{- $spec := .own.spec | default dict }}
{{- range $volume := $spec.volumes }}
{{- if has $volume.name (list "agent" "attempts" "files" "key" "programs" "reports" "scripts" "state") }}
{{- fail (printf "\n\n%s.spec.volumes: %s is a volume of the chart. Choose another name.\n" $.path $volume.name) }}
{{- end }}
{{- end }}
{{- $first := omit (first ($spec.containers | default (list dict))) "name" }}
{{- $variables := list }}
{{- range $first.env }}
{{- if not (hasKey ($.env | default dict) .name) }}{{ $variables = append $variables . }}{{ end }}
{{- end }}
{{- if $first.env }}{{ $_ := set $first "env" $variables }}{{ end }}
{{- include "ddp-run.mergeContainer" (dict "base" (first $pod.spec.containers) "over" $first "path" (printf "%s.spec.containers[0]" .path)) }}
{{- $ours := dict }}
{{- range $pod.spec.initContainers }}{{ $_ := set $ours .name . }}{{ end }}
{{- $more := list }}
{{- range $index, $container := $spec.initContainers }}
{{- if hasKey $ours (.name | default "") }}
{{- include "ddp-run.mergeContainer" (dict "base" (get $ours .name) "over" . "path" (printf "%s.spec.initContainers[%d]" $.path $index)) }}
{{- else }}
{{- $more = append $more . }}
{{- end }}
{{- end }}
{{- include "ddp-run.merge" (dict "base" $pod.spec "over" (omit $spec "containers" "initContainers")) }}
{{- with $more }}{{ $_ := set $pod.spec "initContainers" (concat ($pod.spec.initContainers | default list) .) }}{{ end }}
{{- if and $pod.spec.hostNetwork (not $spec.dnsPolicy) }}
{{- /* With ClusterFirst such a pod asks its node's name server, which knows no Service. */}}
{{- $_ := set $pod.spec "dnsPolicy" "ClusterFirstWithHostNet" }}
{{- end }}
{{- include "ddp-run.merge" (dict "base" $pod "over" (dict "metadata" ($.own.metadata | default dict))) }}
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
{{- fail (printf "\n\n%s: a text in it or in env has a control character that YAML cannot represent. Remove it.\n" .path) }}
{{- end }}
{{- $text }}
{{- end }}
{{- end }}

{{/* Merge a container, but refuse a second handler for a probe that the chart has. */}}
{{- define "ddp-run.mergeContainer" -}}
{{- range $probe := list "readinessProbe" "livenessProbe" "startupProbe" }}
{{- $ours := get $.base $probe | default dict }}
{{- $asks := pick (get $.over $probe | default dict) "exec" "grpc" "httpGet" "tcpSocket" }}
{{- if and $ours $asks }}
{{- fail (printf "\n\n%s.%s.%s: the chart's own %s has a handler. Remove this one; fields such as periodSeconds may stay.\n" $.path $probe (keys $asks | first) $probe) }}
{{- end }}
{{- end }}
{{- include "ddp-run.merge" (dict "base" .base "over" .over) }}
{{- end }}

{{/*
Merge `over` into `base`, which is changed: maps merge, lists append, every other value of `over` wins. Where Kubernetes
has a key for the entries of a list, an entry of `over` replaces the one of its key. A node must fit one of the node
selector terms of each.
*/}}
{{- define "ddp-run.merge" -}}
{{- $keys := dict "env" (list "name") "hostAliases" (list "ip") "imagePullSecrets" (list "name")
  "ports" (list "containerPort" "protocol") "resourceClaims" (list "name") "volumeDevices" (list "devicePath")
  "topologySpreadConstraints" (list "topologyKey" "whenUnsatisfiable") "volumeMounts" (list "mountPath") "volumes" (list "name") }}
{{- range $key, $value := .over }}
{{- $ours := index $.base $key }}
{{- $lists := and (kindIs "slice" $value) (kindIs "slice" $ours) }}
{{- if and (kindIs "map" $value) (kindIs "map" $ours) }}
{{- include "ddp-run.merge" (dict "base" $ours "over" $value) }}
{{- else if and $lists (eq $key "nodeSelectorTerms") }}
{{- $terms := list }}
{{- range $our := $ours }}
{{- range $value }}
{{- $term := deepCopy . }}
{{- range $part := list "matchExpressions" "matchFields" }}
{{- with concat (get $our $part | default list) (get $term $part | default list) }}{{ $_ := set $term $part . }}{{ end }}
{{- end }}
{{- $terms = append $terms $term }}
{{- end }}
{{- end }}
{{- $_ := set $.base $key $terms }}
{{- else if $lists }}
{{- $fields := get $keys $key }}
{{- $replaced := list }}
{{- if $fields }}
{{- range $value }}{{ $replaced = append $replaced (include "ddp-run.entryKey" (list . $fields)) }}{{ end }}
{{- end }}
{{- $list := list }}
{{- range $ours }}
{{- $taken := and $fields (has (include "ddp-run.entryKey" (list . $fields)) $replaced) }}
{{- if not $taken }}{{ $list = append $list . }}{{ end }}
{{- end }}
{{- $_ := set $.base $key (concat $list $value) }}
{{- else }}
{{- $_ := set $.base $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Key of an entry of a list; call with the entry and the names of its fields. */}}
{{- define "ddp-run.entryKey" -}}
{{- $entry := merge dict (first .) (dict "protocol" "TCP") }}
{{- range last . }}{{ get $entry . }}{{ "\n" }}{{ end }}
{{- end }}

{{/* Refuse labels of pods that are not the user's; call with path, own, and more labels that select the chart's pods. */}}
{{- define "ddp-run.refuseLabels" -}}
{{- range $label, $_ := .own }}
{{- include "ddp-run.refuse" (list
  (list (has $label (concat $.labels (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component"))) (printf "%s: the label %s selects the pods of the chart. Choose another label." $.path $label))
  (list (hasPrefix "kueue.x-k8s.io/" $label) (printf "%s: %s belongs to the object that Kueue admits. Remove it, and set kueue.queueName." $.path $label))) }}
{{- end }}
{{- end }}

{{/*
Refuse what a podTemplate must not set; call with root, path, own, labels that select the chart's pods, run and image,
which say where the command and the image belong (no image: any one will do), gpu and gpus, the resource of a GPU and the
value of their number, and set, a map of field of the pod to the value to set instead.
*/}}
{{- define "ddp-run.refusePodTemplate" -}}
{{- $spec := dig "spec" dict .own }}
{{- $first := first ($spec.containers | default (list dict)) }}
{{- $contract := include "ddp-run.contract" .root | fromJson }}
{{- include "ddp-run.refuseLabels" (dict "path" (printf "%s.metadata.labels" .path) "own" (dig "metadata" "labels" dict .own) "labels" .labels) }}
{{- $reasons := list
  (list (gt (len ($spec.containers | default list)) 1) (printf "%s.spec.containers: only the first container is used, for the program itself. A sidecar that ends with it is an init container%s:\n\n  initContainers:\n    - name: sidecar\n      restartPolicy: Always" .path (ternary "; other programs run as tasks" "" (hasKey . "task"))))
  (list (and .image (hasKey $first "image")) (printf "%s.spec.containers[0].image: the chart must know the image of the program. Remove it, and set %s." .path (.image | default ""))) }}
{{- range $field := list "command" "args" }}
{{- $reasons = append $reasons (list (hasKey $first $field) (printf "%s.spec.containers[0].%s: the chart starts the program. %s" $.path $field $.run)) }}
{{- end }}
{{- range $field := list "hostname" "subdomain" "restartPolicy" "setHostnameAsFQDN" }}
{{- $reasons = append $reasons (list (hasKey $spec $field) (printf "%s.spec.%s: the chart sets this field for DNS names and restarts. Remove it." $.path $field)) }}
{{- end }}
{{- range $field, $value := merge (dict "activeDeadlineSeconds" "activeDeadlineSeconds of the chart") .set }}
{{- $reasons = append $reasons (list (hasKey $spec $field) (printf "%s.spec.%s: this field has a value of its own. Remove it, and set %s." $.path $field $value)) }}
{{- end }}
{{- range $kind := list "containers" "initContainers" }}
{{- range $index, $container := index $spec $kind }}
{{- $path := printf "%s.spec.%s[%d]" $.path $kind $index }}
{{- range $amounts := list "requests" "limits" }}
{{- $reasons = append $reasons (list (hasKey (dig "resources" $amounts dict $container) $.gpu) (printf "%s.resources.%s: the number of %s is a value of its own. Remove it here, and set %s." $path $amounts $.gpu $.gpus)) }}
{{- end }}
{{- $own := has $container.name (list "accept" "agent") }}
{{- $sidecar := not (or (eq $kind "containers") $own) }}
{{- range $field := list "command" "args" "image" }}
{{- $reasons = append $reasons (list (and $own (hasKey $container $field)) (printf "%s.%s: %s is a container of the chart. Remove it." $path $field $container.name)) }}
{{- end }}
{{- range $container.volumeMounts }}
{{- $replaces := eq (clean .mountPath) $contract.sharedMemoryMount }}{{/* more shared memory */}}
{{- $reserved := and (not $sidecar) (not $replaces) (include "ddp-run.isReserved" (dict "root" $.root "place" .mountPath)) }}
{{- $reasons = append $reasons (list $reserved (printf "%s.volumeMounts: %s is a place of the chart or of the system. Choose a mountPath other than these and what is in them: %s." $path .mountPath (join ", " $contract.reservedMounts))) }}
{{- end }}
{{- include "ddp-run.refuse" $reasons }}
{{- $env := dict }}
{{- range $container.env }}{{ $_ := set $env .name (.value | default "…") }}{{ end }}
{{- include "ddp-run.refuseReserved" (dict "root" $.root "path" (printf "%s.env" $path) "task" $.task "env" $env) }}
{{- end }}
{{- end }}
{{- include "ddp-run.refuse" $reasons }}
{{- end }}

{{/* Refuse a program that counts on GPUs and gets none; call with count, resource, its value, and the program's container. */}}
{{- define "ddp-run.refuseNoGpus" -}}
{{- if and .count (not .resource) (not (dig "resources" "claims" nil .container)) -}}
{{- fail (printf "\n\n%s: it is empty, so the GPUs come from a claim, and the container %s has none. Name the resource of a GPU, or set in podTemplate:\n\nspec:\n  resourceClaims:\n    - {name: gpus, resourceClaimTemplateName: my-gpus}\n\nand in that container:\n\nresources:\n  claims:\n    - name: gpus\n" .value .container.name) -}}
{{- end -}}
{{- end }}

{{/* Something if a user's volume must not be mounted at `place`; call with root, too. Volumes in /tmp and /dev are usual. */}}
{{- define "ddp-run.isReserved" -}}
{{- $place := clean .place -}}
{{- range $reserved := (include "ddp-run.contract" .root | fromJson).reservedMounts -}}
{{- $holds := not (regexMatch "^/(tmp|dev)$" $reserved) -}}
{{- if or (has $place (list $reserved "/")) (and $holds (hasPrefix (printf "%s/" $reserved) $place)) }}yes{{ end -}}
{{- end -}}
{{- end }}
