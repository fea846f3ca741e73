{{/*
Name of a run's object. It has a hash of what the user chose: the values that differ from the
chart's defaults and that decide about the pods. Another choice is another object, because
Kubernetes lets nobody change the pods of a Job. Another version of the chart, with other templates,
defaults and images, is the same object, so that it never replaces a run. Call with root; never, the
paths of values that decide nothing about the pods or that Kubernetes changes in place; and acts, a
map of path to whether the value acts, for those that act only with another one.
*/}}
{{- define "gpu-accept.hash" -}}
{{- $image := .root.Values.image -}}
{{- $without := concat .never (list "authentication.secretKey" "commonAnnotations" "commonLabels"
  "enabled" "extraObjects" "global"
  "helperImage" "networkPolicy" "workloadAnnotations" "workloadLabels") -}}
{{- $acts := merge .acts (dict "image.tag" (not (or $image.digest
  (eq $image.tag .root.Chart.AppVersion)))) -}}
{{- range $path, $act := $acts }}
{{- if not $act }}
{{- $without = append $without $path }}
{{- end }}
{{- end -}}
{{- $defaults := include "gpu-accept.defaults" .root | fromJson -}}
{{- $chosen := dict -}}
{{- include "gpu-accept.choose" (dict
  "values" .root.Values "defaults" $defaults "chosen" $chosen "path" "" "without" $without) -}}
{{ list .root.Release.Name .root.Release.Namespace .root.Values.runId (toJson $chosen) | join "\n" |
  sha256sum | trunc 8 }}
{{- end }}

{{/* Put into `chosen` what differs between values and defaults; a default that the user removed is
null there. */}}
{{- define "gpu-accept.choose" -}}
{{- range $key := concat (keys .values) (keys .defaults) | uniq -}}
{{- $value := get $.values $key -}}
{{- $default := get $.defaults $key -}}
{{- $path := printf "%s%s" $.path $key -}}
{{- if has $path $.without -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $default) -}}
{{- $below := dict -}}
{{- include "gpu-accept.choose" (dict "values" $value "defaults" $default "chosen" $below
  "path" (printf "%s." $path) "without" $.without) -}}
{{- if $below }}{{ $_ := set $.chosen $key $below }}{{ end -}}
{{- else if ne (toJson (hasKey $.values $key | ternary $value nil))
  (toJson (hasKey $.defaults $key | ternary $default nil)) -}}
{{- $_ := set $.chosen $key (hasKey $.values $key | ternary $value nil) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Annotations of the object of a run, by which a later upgrade finds it. It refuses to end a run
because the chart is another one: what is refused is in one line here, and in pages by Kubernetes.
Call with root, kind, and name of the object.
*/}}
{{- define "gpu-accept.runAnnotations" -}}
{{- $chart := get (include "gpu-accept.labels" .root | fromYaml) "helm.sh/chart" -}}
{{- $run := .root.Values.runId | toString -}}
{{- include "gpu-accept.pods" .root -}}
{{- $specs := dict -}}
{{- range $name, $pod := .root.pods }}{{ $_ := set $specs $name (fromYaml $pod) }}{{ end -}}
{{- $pods := toJson $specs | sha256sum | trunc 16 -}}
{{- range (lookup (first .kind) (last .kind) .root.Release.Namespace "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $found := .metadata.annotations | default dict -}}
{{- $ours := and (eq (get $labels "app.kubernetes.io/instance") $.root.Release.Name)
  (eq (get $found "gpu-charts/run-id") $run) -}}
{{- $other := or (eq .metadata.name $.name) (ne (get $labels "helm.sh/chart") $chart) -}}
{{- if and $ours $other (hasKey $found "gpu-charts/pods")
  (ne (get $found "gpu-charts/pods") $pods) -}}
{{- fail (printf "\n\n%s is a run of the chart %s, and goes on: %s would start it again. %s\n"
  .metadata.name (get $labels "helm.sh/chart") $chart
  "Upgrade with that chart, or run again with --set-string runId=$(date +%s)") -}}
{{- end -}}
{{- end -}}
gpu-charts/run-id: {{ $run | quote }}
gpu-charts/pods: {{ $pods | quote }}
{{- end }}

{{/*
Refuse a JobSet where the cluster has none; call with root and instead, the values without it. Only
a cluster serves apiregistration.k8s.io: `helm template` without one knows nothing about JobSet, and
renders it. Kubernetes before 1.31 refuses the CRD of JobSet 0.11 and newer.
*/}}
{{- define "gpu-accept.refuseWithoutJobSet" -}}
{{- $served := .root.Capabilities.APIVersions -}}
{{- if and ($served.Has "apiregistration.k8s.io/v1")
  (not ($served.Has "jobset.x-k8s.io/v1alpha2/JobSet")) -}}
{{- $newest := semverCompare ">=1.31.0-0" .root.Capabilities.KubeVersion.Version | ternary "v0.12.0"
  "v0.10.1" -}}
{{- fail (printf "\n\n%s\n\n%s/%s/manifests.yaml\n\nWithout it set:\n\n%s\n"
  "This cluster has no JobSet (jobset.x-k8s.io/v1alpha2). An administrator installs it:"
  "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download"
  $newest .instead) -}}
{{- end -}}
{{- end }}
