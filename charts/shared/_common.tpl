{{/*
Templates that all charts share, such as the fields of every pod: charts/shared/_common.tpl.
`make generate` writes a copy into each chart with the chart's name in place of CHART, so that
charts of different versions can be subcharts of one chart. (A library chart would have to be
fetched before `helm template` works.)
*/}}

{{/* Labels of an object. Never put them into a pod template of a Job: the chart's version would
make it immutable. */}}
{{- define "CHART.labels" -}}
{{ include "CHART.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 |
  trimSuffix "-" }}
{{- include "CHART.commonLabels" . }}
{{- end }}

{{/* Annotations and labels of an object; more labels may follow. */}}
{{- define "CHART.metadata" -}}
{{- with .Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{ end -}}
labels:
  {{- include "CHART.labels" . | nindent 2 }}
{{- end }}

{{/* Labels and annotations of the object that runs the pods; call with root, labels,
and where it is a run, kind and name. */}}
{{- define "CHART.workloadMetadata" -}}
{{- $values := .root.Values }}
labels:
  {{- merge (fromYaml .labels) ($values.workloadLabels | default dict) | toYaml | nindent 2 }}
{{- $run := dict }}
{{- if .kind }}{{ $run = include "CHART.runAnnotations" . | fromYaml }}{{ end }}
{{- with merge $run ($values.workloadAnnotations | default dict)
  ($values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels that the user wants on every object, each on a line of its own. */}}
{{- define "CHART.commonLabels" -}}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of a pod without a podTemplate of the user, which a service mesh leaves alone, as it
does the other pods. */}}
{{- define "CHART.helperLabels" -}}
{{- if not (hasKey .Values.commonLabels "sidecar.istio.io/inject") }}
sidecar.istio.io/inject: "false"
{{- end }}
{{- include "CHART.commonLabels" . }}
{{- end }}

{{- define "CHART.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Regular expression of the name of a repository of images. */}}
{{- define "CHART.repository" -}}
((\[[0-9a-fA-F:]+\]|[a-zA-Z0-9.-]+)(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*
{{- end }}

{{/* Refuse values for the first reason that holds; call with reasons, each a list of condition and
message. */}}
{{- define "CHART.refuse" -}}
{{- range . }}{{ if first . }}{{ fail (printf "\n\n%s\n" (last .)) }}{{ end }}{{ end -}}
{{- end }}

{{/* Refuse a key of values.yaml that has no value: Helm removes it together with its default. */}}
{{- define "CHART.refuseBlank" -}}
{{- range $path := include "CHART.keys" . | fromYamlArray -}}
{{- $value := $.Values -}}
{{- range splitList "." $path }}{{ $value = index ($value | default dict) . }}{{ end -}}
{{- if kindIs "invalid" $value -}}
{{- fail (printf "\n\n%s: the key has no value. Remove it, or upgrade with --reset-then-reuse-values.\n" $path) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Resources of a container with its devices, a map of resource name to value and count; call with
resources, devices and path. A device without a name comes from elsewhere, such as a claim. A
fraction is text, because JobSet accepts no other numbers than whole ones.
*/}}
{{- define "CHART.resources" -}}
{{- $all := dict -}}
{{- range $kind, $amounts := .resources -}}
{{- $own := dict -}}
{{- range $name, $amount := $amounts -}}
{{- if hasKey $.devices $name -}}
{{- fail (printf "\n\n%s.%s: the number of %s is a value of its own: set %s.\n" $.path $kind $name
  (get $.devices $name | first)) -}}
{{- end -}}
{{- $whole := kindIs "string" $amount | ternary false
  (eq (toString $amount) (floor $amount | toString)) -}}
{{- $_ := set $own $name ($whole | ternary (int64 $amount) (toString $amount)) -}}
{{- end -}}
{{- $_ := set $all $kind $own -}}
{{- end -}}
{{- range $name, $device := .devices -}}
{{- $count := last $device | int -}}
{{- if and $name $count }}
{{- $_ := set $all "limits" (merge (dict $name $count) ($all.limits | default dict)) }}
{{- end -}}
{{- end -}}
{{- $all | empty | ternary "" (toYaml $all) -}}
{{- end }}

{{/*
Environment of a user's program: what the chart sets, with the user's variables over it. Call with
root, set and env, maps of NAME to text, or to a map such as {valueFrom: …}, and own, the
podTemplate with more variables of the user, if any: as in SkyPilot, env wins over these. Variables
that have the value of another one follow it.
*/}}
{{- define "CHART.environment" -}}
{{- $contract := include "CHART.contract" .root | fromJson -}}
{{- $env := deepCopy (.env | default dict) -}}
{{- range (first (dig "spec" "containers" (list dict) (.own | default dict))).env }}
{{- if not (hasKey $env .name) }}{{ $_ := set $env .name (omit . "name") }}{{ end }}
{{- end -}}
{{- $all := dict "USER" $contract.user -}}
{{- range $variables := list .set $env -}}
{{- range $name, $value := $variables }}{{ $_ := set $all $name $value }}{{ end -}}
{{- end -}}
{{- range $name, $source := $contract.agreesWith -}}
{{- if and (hasKey $all $source) (not (hasKey $env $name)) }}
{{- $_ := set $all $name (get $all $source) }}
{{- end -}}
{{- end -}}
{{- range $name, $value := $all }}
{{- if kindIs "map" $value }}
- {{ merge (dict "name" $name) $value | toJson }}
{{- else }}
{{- /* Kubernetes expands $(NAME) and halves $$ in a value, and users mean what they wrote. */}}
- {name: {{ quote $name }}, value: {{ $value | toString | replace "$" "$$" | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/*
Refuse names that a user's environment must not set, and name the value to set instead. Call with
root, path, the variables env, and where they belong to a task of a group, the path task.
*/}}
{{- define "CHART.refuseReserved" -}}
{{- $contract := include "CHART.contract" .root | fromJson -}}
{{- $task := .task | default "" -}}
{{- range $name, $value := .env -}}
{{- $path := printf "%s.%s" $.path $name -}}
{{- $instead := get $contract.reserved $name | replace "TASK" $task | replace "ENV"
  (printf "%s.env" $task) -}}
{{- $form := get $contract.accepts $name | default (list "" ".*") -}}
{{- $wrong := not (or (eq (toString $value) "…")
  (regexMatch (printf "^(%s)$" (last $form)) (toString $value))) -}}
{{- include "CHART.refuse" (list
  (list (has $name (list "true" "false" "null"))
    (printf "%s: YAML reads a name such as N, y or on as %s. Put it into quotes." $path $name))
  (list (hasPrefix $contract.internalPrefix $name)
    (printf "%s: names that begin with %s are internal to the chart." $path $contract.internalPrefix))
  (list (and (get $contract.accepts $name) $wrong)
    (printf "%s: it must be %s." $path (first $form)))
  (list (hasKey $contract.reserved $name)
    (printf "%s: the name is reserved. %s" $path ($instead | empty | ternary "Remove it."
      (printf "Set %s to %v." (trimPrefix "." $instead) $value))))) -}}
{{- end -}}
{{- end }}

{{- define "CHART.refuseKueue" -}}
{{- if and .Values.kueue.priorityClass (not .Values.kueue.queueName) -}}
{{- fail "\n\nkueue.priorityClass: it has no effect without kueue.queueName.\n" -}}
{{- end -}}
{{- end }}

{{/* Labels with which Kueue admits an object. They are part of its name, because Kueue lets nobody
change them later. */}}
{{- define "CHART.kueue" -}}
{{- with .Values.kueue.queueName -}}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- with $.Values.kueue.priorityClass }}
kueue.x-k8s.io/priority-class: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fields that every pod has; call with root, nodeSelector, tolerations as YAML and token,
whether it gets one of its account. */}}
{{- define "CHART.podFields" -}}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
securityContext:
  {{- $context := .root.Values.podSecurityContext | default dict }}
  {{- $global := .root.Values.global | default dict }}
  {{- /* OpenShift gives users and groups to the namespace, and refuses others. */}}
  {{- $adapt := dig "compatibility" "openshift" "adaptSecurityContext" "auto" $global }}
  {{- if or (eq $adapt "force") (.root.Capabilities.APIVersions.Has "security.openshift.io/v1") }}
  {{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" }}
  {{- end }}
  {{- toYaml $context | nindent 2 }}
{{- $secrets := .root.Values.imagePullSecrets }}
{{- range $global.imagePullSecrets }}{{/* a name, or a map with one */}}
{{- $secrets = append $secrets (kindIs "map" . | ternary . (dict "name" .)) }}
{{- end }}
{{- with $secrets }}
imagePullSecrets:
  {{- toYaml (uniq .) | nindent 2 }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations: # taints of GPU nodes: most have the name of their resource, those of AKS sku
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  - {key: amd.com/gpu, operator: Exists, effect: NoSchedule}
  - {key: sku, operator: Equal, value: gpu, effect: NoSchedule}
  {{- with .tolerations }}{{ . | nindent 2 }}{{ end }}
  {{- with .root.Values.tolerations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Fields that every container has. */}}
{{- define "CHART.container" -}}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- toYaml (.Values.containerSecurityContext | default dict) | nindent 2 }}
{{- end }}

{{/* Annotations of pods that autoscalers must not evict to empty a node: all that they have done
would be lost. */}}
{{- define "CHART.noEviction" -}}
cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
karpenter.sh/do-not-disrupt: "true"
{{- end }}
