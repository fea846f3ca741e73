{{/*
Refuse a pod that Kubernetes would refuse. A JobSet accepts such a pod template, and its Job is then never created. Call
with the pod as it will be, after every merge, and what, the words for it in the message.
*/}}
{{- define "gpu-accept.refuseInvalidPod" -}}
{{- $spec := .pod.spec -}}
{{- $found := list -}}
{{- range $toleration := $spec.tolerations -}}
{{- $with := include "gpu-accept.invalidToleration" . -}}
{{- if $with }}{{ $found = append $found (printf "the toleration of %s %s" (.key | default "every key") $with) }}{{ end -}}
{{- end -}}
{{- $volumes := list -}}
{{- range $spec.volumes -}}
{{- if has .name $volumes }}{{ $found = append $found (printf "two volumes have the name %s" .name) }}{{ end -}}
{{- $volumes = append $volumes .name -}}
{{- $sources := list -}}
{{- range $source, $value := omit . "name" -}}
{{- if not (kindIs "invalid" $value) }}{{ $sources = append $sources $source }}{{ end -}}
{{- end -}}
{{- if gt (len $sources) 1 }}{{ $found = append $found (printf "the volume %s has two sources, %s" .name (join " and " $sources)) }}{{ end -}}
{{- end -}}
{{- $names := list -}}
{{- range concat ($spec.initContainers | default list) $spec.containers -}}
{{- $name := .name | default "without a name" -}}
{{- $problems := include "gpu-accept.invalidContainer" (dict "container" . "volumes" $volumes) | fromJsonArray -}}
{{- if has $name $names }}{{ $problems = append $problems "has the name of another one" }}{{ end -}}
{{- $names = append $names $name -}}
{{- range $problems }}{{ $found = append $found (printf "the container %s %s" $name .) }}{{ end -}}
{{- end -}}
{{- with $found | uniq -}}
{{- fail (printf "\n\n%s: Kubernetes would refuse the pod:\n- %s\nCorrect them in the values that these come from, such as resources, env, tolerations or podTemplate.\n" $.what (join "\n- " .)) -}}
{{- end -}}
{{- end }}

{{- define "gpu-accept.invalidToleration" -}}
{{- $operator := .operator | default "Equal" -}}
{{- if and (eq $operator "Exists") .value -}}
has the operator Exists and a value
{{- else if and (not .key) (ne $operator "Exists") -}}
has no key, which the operator Exists allows only
{{- else if and (hasKey . "tolerationSeconds") (ne (toString .effect) "NoExecute") -}}
has tolerationSeconds, which the effect NoExecute allows only
{{- end -}}
{{- end }}

{{/* What is wrong with a container, as a JSON list; call with container and volumes, the names of the pod's volumes. */}}
{{- define "gpu-accept.invalidContainer" -}}
{{- $found := list -}}
{{- $own := .container -}}
{{- if not $own.image }}{{ $found = append $found "has no image" }}{{ end -}}
{{- range $own.env -}}
{{- $sources := len (.valueFrom | default dict) -}}
{{- if and .value .valueFrom }}{{ $found = append $found (printf "has value and valueFrom of the variable %s" .name) }}{{ end -}}
{{- if and (hasKey . "valueFrom") (ne $sources 1) }}{{ $found = append $found (printf "has %d sources of the variable %s, instead of one" $sources .name) }}{{ end -}}
{{- end -}}
{{- $paths := list -}}
{{- range $own.volumeMounts -}}
{{- if not (has .name $.volumes) }}{{ $found = append $found (printf "mounts the volume %s, which does not exist" .name) }}{{ end -}}
{{- if has .mountPath $paths }}{{ $found = append $found (printf "mounts two volumes at %s" .mountPath) }}{{ end -}}
{{- $paths = append $paths .mountPath -}}
{{- range list (.subPath | default "") (.subPathExpr | default "") -}}
{{- if regexMatch "^/|(^|/)[.][.](/|$)" . }}{{ $found = append $found (printf "has the subPath %s, which leaves its volume" .) }}{{ end -}}
{{- end -}}
{{- if and .subPath .subPathExpr }}{{ $found = append $found (printf "has subPath and subPathExpr at %s" .mountPath) }}{{ end -}}
{{- end -}}
{{- $limits := dig "resources" "limits" dict $own -}}
{{- $requests := dig "resources" "requests" dict $own -}}
{{- range $name := concat (keys $limits) (keys $requests) | uniq | sortAlpha -}}
{{- $shared := has $name (list "cpu" "memory" "ephemeral-storage") -}}
{{- $extended := and (contains "/" $name) (not (contains "kubernetes.io/" $name)) -}}
{{- $limit := index $limits $name | toString -}}
{{- $request := index $requests $name | toString -}}
{{- $both := and (hasKey $limits $name) (hasKey $requests $name) -}}
{{- $over := 0.0 -}}
{{- if $both }}{{ $over = subf (include "gpu-accept.number" $request | float64) (include "gpu-accept.number" $limit | float64) }}{{ end -}}
{{- if not (or $shared (contains "/" $name) (hasPrefix "hugepages-" $name)) -}}
{{- $found = append $found (printf "has resources of the unknown name %s" $name) -}}
{{- else if and (regexMatch "^([^/]*[.])?kubernetes[.]io/" $name) (not (hasPrefix "deviceclass.resource.kubernetes.io/" $name)) -}}
{{- $found = append $found (printf "has resources of the name %s, which no device has: kubernetes.io/ is Kubernetes' own" $name) -}}
{{- else if gt $over 0.0 -}}
{{- $found = append $found (printf "requests %s of %s, above its limit %s" $request $name $limit) -}}
{{- else if and (not $shared) (lt $over 0.0) -}}
{{- $found = append $found (printf "requests %s of %s, and has the limit %s: they must be equal" $request $name $limit) -}}
{{- else if and (not $shared) (not (hasKey $limits $name)) -}}
{{- $found = append $found (printf "requests %s without a limit, which must be equal" $name) -}}
{{- end -}}
{{- if $extended -}}
{{- $number := include "gpu-accept.number" (hasKey $limits $name | ternary $limit $request) | float64 -}}
{{- if ne $number (floor $number) }}{{ $found = append $found (printf "has a fraction of %s" $name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Number of a quantity of Kubernetes, such as 500m, 16Gi or 1e3. */}}
{{- define "gpu-accept.number" -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $unit := regexFind "([numkMGTPE]|[KMGTPE]i)$" . -}}
{{ mulf (trimSuffix $unit . | float64) (get $units $unit | default 1) }}
{{- end }}
