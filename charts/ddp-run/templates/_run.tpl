{{/*
Name of a run's object. It has a hash of what the user chose: the values that differ from the chart's defaults. Another
choice is another object, because Kubernetes lets nobody change the pods of a Job. Another version of the chart, with other
templates, defaults and image, is the same object, so that it never replaces a run: Kubernetes refuses the change. Call with
root and without, the values that decide nothing about the object, besides those that never do.
*/}}
{{- define "ddp-run.hash" -}}
{{- $chosen := dict -}}
{{- include "ddp-run.choose" (dict "values" .root.Values "defaults" (include "ddp-run.defaults" .root | fromJson) "chosen" $chosen) -}}
{{- range concat .without (list "commonLabels" "enabled" "extraObjects" "global" "networkPolicy" "workloadAnnotations" "workloadLabels") }}{{ $_ := unset $chosen . }}{{ end -}}
{{ list .root.Release.Name .root.Release.Namespace .root.Values.runId (toJson $chosen) | join "\n" | sha256sum | trunc 8 }}
{{- end }}

{{/* Put into `chosen` what differs between values and defaults; a default that the user removed is null there. */}}
{{- define "ddp-run.choose" -}}
{{- range $key, $value := .values -}}
{{- $default := get $.defaults $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $default) -}}
{{- $below := dict -}}
{{- include "ddp-run.choose" (dict "values" $value "defaults" $default "chosen" $below) -}}
{{- if $below }}{{ $_ := set $.chosen $key $below }}{{ end -}}
{{- else if ne (toJson $value) (toJson $default) -}}
{{- $_ := set $.chosen $key $value -}}
{{- end -}}
{{- end -}}
{{- range $key, $default := .defaults -}}
{{- if not (or (hasKey $.values $key) (kindIs "invalid" $default)) }}{{ $_ := set $.chosen $key nil }}{{ end -}}
{{- end -}}
{{- end }}

{{/*
Refuse a JobSet where the cluster has none; call with root and instead, the values without it. Only a cluster serves
apiregistration.k8s.io: `helm template` without one knows nothing about JobSet, and renders it. Kubernetes before 1.31
refuses the CRD of JobSet 0.11 and newer.
*/}}
{{- define "ddp-run.refuseWithoutJobSet" -}}
{{- $served := .root.Capabilities.APIVersions -}}
{{- if and ($served.Has "apiregistration.k8s.io/v1") (not ($served.Has "jobset.x-k8s.io/v1alpha2/JobSet")) -}}
{{- $newest := semverCompare ">=1.31.0-0" .root.Capabilities.KubeVersion.Version | ternary "v0.12.0" "v0.10.1" -}}
{{- fail (printf "\n\nThis cluster has no JobSet (jobset.x-k8s.io/v1alpha2). An administrator of the cluster installs it:\n\nkubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download/%s/manifests.yaml\n\nWithout it set:\n\n%s\n" $newest .instead) -}}
{{- end -}}
{{- end }}
