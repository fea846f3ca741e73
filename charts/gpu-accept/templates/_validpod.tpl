{{/*
Refuse a pod that Kubernetes would refuse or could not start. A JobSet accepts such a pod template, and its Job is then
never created. Call with the pod as it will be, after every merge, and what, the words for it in the message.
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
{{- $claims := list -}}
{{- range $spec.resourceClaims -}}
{{- if has .name $claims }}{{ $found = append $found (printf "two resource claims have the name %s" .name) }}{{ end -}}
{{- $claims = append $claims .name -}}
{{- $sources := pick . "resourceClaimName" "resourceClaimTemplateName" | len -}}
{{- if ne $sources 1 }}{{ $found = append $found (printf "the resource claim %s has %d of resourceClaimName and resourceClaimTemplateName, instead of one" .name $sources) }}{{ end -}}
{{- end -}}
{{- range include "gpu-accept.invalidSelectors" (pick $spec "affinity" "topologySpreadConstraints") | splitList "\n" | compact }}{{ $found = append $found . }}{{ end -}}
{{- $names := list -}}
{{- range concat ($spec.initContainers | default list) $spec.containers -}}
{{- $name := .name | default "without a name" -}}
{{- $problems := include "gpu-accept.invalidContainer" (dict "container" . "pod" $spec "volumes" $volumes "claims" $claims) | fromJsonArray -}}
{{- if has $name $names }}{{ $problems = append $problems "has the name of another one" }}{{ end -}}
{{- $names = append $names $name -}}
{{- range $problems }}{{ $found = append $found (printf "the container %s %s" $name .) }}{{ end -}}
{{- end -}}
{{- with $found | uniq -}}
{{- fail (printf "\n\n%s: Kubernetes would refuse the pod, or could not start it:\n- %s\nCorrect them in the values that these come from, such as resources, env, tolerations or podTemplate.\n" $.what (join "\n- " .)) -}}
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

{{/* What is wrong with the label selectors anywhere in a value, one a line. */}}
{{- define "gpu-accept.invalidSelectors" -}}
{{- if kindIs "map" . -}}
{{- range .matchExpressions -}}
{{- $number := len (.values | default list) -}}
{{- if and (has .operator (list "In" "NotIn")) (not $number) -}}
the selector of {{ .key }} has the operator {{ .operator }} and no values{{ "\n" }}
{{- else if and (has .operator (list "Exists" "DoesNotExist")) $number -}}
the selector of {{ .key }} has the operator {{ .operator }} and values{{ "\n" }}
{{- else if and (has .operator (list "Gt" "Lt")) (not (regexMatch "^-?[0-9]+$" (.values | default list | join " "))) -}}
the selector of {{ .key }} has the operator {{ .operator }} and not one number as value{{ "\n" }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if or (kindIs "map" .) (kindIs "slice" .) }}{{ range . }}{{ include "gpu-accept.invalidSelectors" . }}{{ end }}{{ end -}}
{{- end }}

{{/*
What is wrong with a container, as a JSON list; call with container, pod, its spec, and volumes and claims, the names of
those of the pod.
*/}}
{{- define "gpu-accept.invalidContainer" -}}
{{- $found := list -}}
{{- $own := .container -}}
{{- if not $own.name }}{{ $found = append $found "needs one" }}{{ end -}}
{{- if not $own.image }}{{ $found = append $found "has no image" }}{{ end -}}
{{- $context := merge dict ($own.securityContext | default dict) ($.pod.securityContext | default dict) -}}
{{- if and $context.runAsNonRoot (eq (toString $context.runAsUser) "0") }}{{ $found = append $found "has runAsUser 0 and runAsNonRoot true. Set runAsNonRoot to false" }}{{ end -}}
{{- if and $context.privileged (eq (toString $context.allowPrivilegeEscalation) "false") }}{{ $found = append $found "has privileged true and allowPrivilegeEscalation false. Set allowPrivilegeEscalation to true" }}{{ end -}}
{{- $reference := printf "^(%s(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?)?$" (include "gpu-accept.repository" .) -}}
{{- if not (regexMatch $reference ($own.image | default "")) }}{{ $found = append $found (printf "has the image %s, which is not a reference such as registry.example.com/team/name:tag" $own.image) }}{{ end -}}
{{- $claims := list -}}
{{- range dig "resources" "claims" list $own -}}
{{- $claim := printf "%s/%s" .name (.request | default "") -}}
{{- if not (has .name $.claims) }}{{ $found = append $found (printf "names the resource claim %s, which the pod does not have" .name) }}{{ end -}}
{{- $whole := or (has (printf "%s/" .name) $claims) (and (not .request) (has .name $claims)) -}}
{{- if or $whole (has $claim $claims) }}{{ $found = append $found (printf "names the resource claim %s twice" .name) }}{{ end -}}
{{- $claims = concat $claims (list .name $claim) -}}
{{- end -}}
{{- $variables := list -}}
{{- range $own.env -}}
{{- if has .name $variables }}{{ $found = append $found (printf "has the variable %s twice, of which server-side apply takes none" .name) }}{{ end -}}
{{- $variables = append $variables .name -}}
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
{{- $named := concat (keys $limits) (keys $requests) | uniq | sortAlpha -}}
{{- range $name := $named -}}
{{- $shared := has $name (list "cpu" "memory" "ephemeral-storage") -}}
{{- $extended := and (contains "/" $name) (not (contains "kubernetes.io/" $name)) -}}
{{- $limit := index $limits $name | toString -}}
{{- $request := index $requests $name | toString -}}
{{- $pages := regexMatch "^hugepages-[1-9][0-9]*[KMG]i$" $name -}}
{{- $both := and (hasKey $limits $name) (hasKey $requests $name) -}}
{{- $over := 0.0 -}}
{{- if $both }}{{ $over = subf (include "gpu-accept.number" $request | float64) (include "gpu-accept.number" $limit | float64) }}{{ end -}}
{{- if not (or $shared (contains "/" $name) $pages) -}}
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
{{- $amounts := list -}}
{{- range list $limits $requests }}{{ if hasKey . $name }}{{ $amounts = append $amounts (index . $name | toString) }}{{ end }}{{ end -}}
{{- range uniq $amounts -}}
{{- $number := include "gpu-accept.number" . | float64 -}}
{{- if and (has $name (list "memory" "ephemeral-storage")) (regexMatch "^[0-9.]+$" .) (gt $number 0.0) (lt $number 1048576.0) -}}
{{- $found = append $found (printf "has %s bytes of %s, since %s has no unit. Write for example %sGi" . $name . .) -}}
{{- end -}}
{{- if $pages -}}
{{- $number = divf $number (include "gpu-accept.number" (trimPrefix "hugepages-" $name) | float64) -}}
{{- if ne $number (floor $number) }}{{ $found = append $found (printf "has %s of %s, which is not a multiple of the size of a page" . $name) }}{{ end -}}
{{- if not (or (has "cpu" $named) (has "memory" $named)) }}{{ $found = append $found (printf "has %s, but neither cpu nor memory, one of which they require" $name) }}{{ end -}}
{{- end -}}
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
