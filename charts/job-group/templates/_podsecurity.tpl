{{/*
Refuse a task whose pod asks for more than podSecurity allows. The controls are those of the Pod Security Standards,
https://kubernetes.io/docs/concepts/security/pod-security-standards; call with root, path of the task, and pod.
*/}}
{{- define "job-group.refusePod" -}}
{{- $level := .root.Values.podSecurity.level -}}
{{- $found := list -}}
{{- if ne $level "privileged" -}}
{{- $found = include "job-group.baseline" .pod | fromJsonArray -}}
{{- end -}}
{{- if eq $level "restricted" -}}
{{- $found = concat $found (include "job-group.restricted" .pod | fromJsonArray) -}}
{{- end -}}
{{- with $found | uniq -}}
{{- fail (printf "\n\n%s: its pod does not fit the Pod Security Standard %s: %s.\nRemove these fields from podTemplate and the security contexts. Whoever may allow them sets:\n\npodSecurity:\n  level: privileged\n" $.path $level (join "; " .)) -}}
{{- end -}}
{{- $spec := .pod.spec -}}
{{- $tokens := list -}}
{{- range $field := list "serviceAccountName" "serviceAccount" "automountServiceAccountToken" -}}
{{- if index $spec $field }}{{ $tokens = append $tokens $field }}{{ end -}}
{{- end -}}
{{- range $volume := $spec.volumes -}}
{{- range dig "projected" "sources" list $volume -}}
{{- if hasKey . "serviceAccountToken" }}{{ $tokens = append $tokens (printf "volume %s: serviceAccountToken" $volume.name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and $tokens (not .root.Values.podSecurity.serviceAccount) -}}
{{- fail (printf "\n\n%s.podTemplate: the pods of this group may have no access to the Kubernetes API: %s. Whoever may allow it sets:\n\npodSecurity:\n  serviceAccount: true\n" .path (join "; " $tokens)) -}}
{{- end -}}
{{- end }}

{{- define "job-group.podContainers" -}}
{{- concat (.spec.initContainers | default list) .spec.containers | toJson -}}
{{- end }}

{{/* What the standard `baseline` forbids in a pod, as a JSON list. */}}
{{- define "job-group.baseline" -}}
{{- $found := list -}}
{{- $pod := .spec.securityContext | default dict -}}
{{- range $field := list "hostNetwork" "hostPID" "hostIPC" -}}
{{- if index $.spec $field }}{{ $found = append $found $field }}{{ end -}}
{{- end -}}
{{- range .spec.volumes -}}
{{- if hasKey . "hostPath" }}{{ $found = append $found (printf "volume %s: hostPath" .name) }}{{ end -}}
{{- end -}}
{{- $safe := list "kernel.shm_rmid_forced" "net.ipv4.ip_local_port_range" "net.ipv4.ip_unprivileged_port_start" "net.ipv4.tcp_syncookies" "net.ipv4.ping_group_range" "net.ipv4.ip_local_reserved_ports" "net.ipv4.tcp_keepalive_time" "net.ipv4.tcp_fin_timeout" "net.ipv4.tcp_keepalive_intvl" "net.ipv4.tcp_keepalive_probes" -}}
{{- range $pod.sysctls -}}
{{- if not (has .name $safe) }}{{ $found = append $found (printf "sysctl %s" .name) }}{{ end -}}
{{- end -}}
{{- range $name, $value := dig "metadata" "annotations" dict . -}}
{{- if and (hasPrefix "container.apparmor.security.beta.kubernetes.io/" $name) (not (regexMatch "^(runtime/default|localhost/.*)?$" $value)) }}{{ $found = append $found $name }}{{ end -}}
{{- end -}}
{{- $contexts := dict "the pod" $pod -}}
{{- $capabilities := list "AUDIT_WRITE" "CHOWN" "DAC_OVERRIDE" "FOWNER" "FSETID" "KILL" "MKNOD" "NET_BIND_SERVICE" "SETFCAP" "SETGID" "SETPCAP" "SETUID" "SYS_CHROOT" -}}
{{- range $container := include "job-group.podContainers" . | fromJsonArray -}}
{{- $own := .securityContext | default dict -}}
{{- $name := printf "container %s" .name -}}
{{- $_ := set $contexts $name $own -}}
{{- if $own.privileged }}{{ $found = append $found (printf "%s: privileged" $name) }}{{ end -}}
{{- if ne ($own.procMount | default "Default") "Default" }}{{ $found = append $found (printf "%s: procMount" $name) }}{{ end -}}
{{- range dig "capabilities" "add" list $own -}}
{{- if not (has . $capabilities) }}{{ $found = append $found (printf "%s: capability %s" $name .) }}{{ end -}}
{{- end -}}
{{- range .ports -}}
{{- if .hostPort }}{{ $found = append $found (printf "%s: hostPort" $name) }}{{ end -}}
{{- end -}}
{{- range $probe := list .livenessProbe .readinessProbe .startupProbe (dig "lifecycle" "postStart" nil .) (dig "lifecycle" "preStop" nil .) -}}
{{- range $kind := list "httpGet" "tcpSocket" -}}
{{- if dig $kind "host" "" ($probe | default dict) }}{{ $found = append $found (printf "%s: %s.host" $name $kind) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $own := $contexts -}}
{{- if eq (dig "seccompProfile" "type" "" $own) "Unconfined" }}{{ $found = append $found (printf "%s: seccompProfile" $name) }}{{ end -}}
{{- if eq (dig "appArmorProfile" "type" "" $own) "Unconfined" }}{{ $found = append $found (printf "%s: appArmorProfile" $name) }}{{ end -}}
{{- if dig "windowsOptions" "hostProcess" false $own }}{{ $found = append $found (printf "%s: hostProcess" $name) }}{{ end -}}
{{- $linux := $own.seLinuxOptions | default dict -}}
{{- if or $linux.user $linux.role (not (has ($linux.type | default "") (list "" "container_t" "container_init_t" "container_kvm_t" "container_engine_t"))) }}{{ $found = append $found (printf "%s: seLinuxOptions" $name) }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* What the standard `restricted` forbids in addition, as a JSON list. */}}
{{- define "job-group.restricted" -}}
{{- $found := list -}}
{{- $pod := .spec.securityContext | default dict -}}
{{- range $volume := .spec.volumes -}}
{{- range omit . "name" | keys -}}
{{- if not (has . (list "configMap" "csi" "downwardAPI" "emptyDir" "ephemeral" "image" "persistentVolumeClaim" "projected" "secret")) }}{{ $found = append $found (printf "volume %s: %s" $volume.name .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $contexts := dict "the pod" $pod -}}
{{- range include "job-group.podContainers" . | fromJsonArray -}}
{{- $own := .securityContext | default dict -}}
{{- $name := printf "container %s" .name -}}
{{- $_ := set $contexts $name $own -}}
{{- if ne (toString $own.allowPrivilegeEscalation) "false" }}{{ $found = append $found (printf "%s: allowPrivilegeEscalation is not false" $name) }}{{ end -}}
{{- if not (has "ALL" (dig "capabilities" "drop" list $own)) }}{{ $found = append $found (printf "%s: capabilities are not dropped" $name) }}{{ end -}}
{{- range dig "capabilities" "add" list $own -}}
{{- if ne . "NET_BIND_SERVICE" }}{{ $found = append $found (printf "%s: capability %s" $name .) }}{{ end -}}
{{- end -}}
{{- if not (hasKey $own "runAsNonRoot" | ternary $own.runAsNonRoot $pod.runAsNonRoot) }}{{ $found = append $found (printf "%s: runAsNonRoot is not true" $name) }}{{ end -}}
{{- if not (has (dig "seccompProfile" "type" (dig "seccompProfile" "type" "" $pod) $own) (list "RuntimeDefault" "Localhost")) }}{{ $found = append $found (printf "%s: no seccompProfile" $name) }}{{ end -}}
{{- end -}}
{{- range $name, $own := $contexts -}}
{{- if eq (toString $own.runAsUser) "0" }}{{ $found = append $found (printf "%s: runAsUser is 0" $name) }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}
