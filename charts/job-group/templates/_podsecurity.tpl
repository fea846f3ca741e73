{{/* Refuse a task whose pod asks for more than podSecurity allows; call with root, path of the task, and pod. */}}
{{- define "job-group.refusePod" -}}
{{- if ne .root.Values.podSecurity.level "privileged" }}{{ include "job-group.refuseStandard" . }}{{ end -}}
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

{{/*
Refuse what the level of podSecurity forbids. The controls are those of the Pod Security Standards,
https://kubernetes.io/docs/concepts/security/pod-security-standards; `restricted` has those of `baseline`, too.
*/}}
{{- define "job-group.refuseStandard" -}}
{{- $spec := .pod.spec -}}
{{- $pod := $spec.securityContext | default dict -}}
{{- $contexts := dict "the pod" $pod -}}
{{- $capabilities := list "AUDIT_WRITE" "CHOWN" "DAC_OVERRIDE" "FOWNER" "FSETID" "KILL" "MKNOD" "NET_BIND_SERVICE" "SETFCAP" "SETGID" "SETPCAP" "SETUID" "SYS_CHROOT" -}}
{{- $sysctls := list "kernel.shm_rmid_forced" "net.ipv4.ip_local_port_range" "net.ipv4.ip_unprivileged_port_start" "net.ipv4.tcp_syncookies" "net.ipv4.ping_group_range" "net.ipv4.ip_local_reserved_ports" "net.ipv4.tcp_keepalive_time" "net.ipv4.tcp_fin_timeout" "net.ipv4.tcp_keepalive_intvl" "net.ipv4.tcp_keepalive_probes" "net.ipv4.tcp_rmem" "net.ipv4.tcp_wmem" "net.ipv4.tcp_slow_start_after_idle" "net.ipv4.tcp_notsent_lowat" -}}
{{- $sources := list "name" "configMap" "csi" "downwardAPI" "emptyDir" "ephemeral" "image" "persistentVolumeClaim" "projected" "secret" -}}
{{- $types := list "" "container_t" "container_init_t" "container_kvm_t" "container_engine_t" -}}
{{- $baseline := list -}}
{{- $restricted := list -}}
{{- range $field := list "hostNetwork" "hostPID" "hostIPC" -}}
{{- $baseline = append $baseline (list (index $spec $field) $field) -}}
{{- end -}}
{{- range $volume := $spec.volumes -}}
{{- $baseline = append $baseline (list (hasKey . "hostPath") (printf "volume %s: hostPath" .name)) -}}
{{- range keys . -}}
{{- $restricted = append $restricted (list (not (has . $sources)) (printf "volume %s: %s" $volume.name .)) -}}
{{- end -}}
{{- end -}}
{{- range $pod.sysctls -}}
{{- $baseline = append $baseline (list (not (has .name $sysctls)) (printf "sysctl %s" .name)) -}}
{{- end -}}
{{- range $name, $value := dig "metadata" "annotations" dict .pod -}}
{{- $baseline = append $baseline (list (and (hasPrefix "container.apparmor.security.beta.kubernetes.io/" $name) (not (regexMatch "^(runtime/default|localhost/.*)?$" $value))) $name) -}}
{{- end -}}
{{- range concat ($spec.initContainers | default list) $spec.containers -}}
{{- $own := .securityContext | default dict -}}
{{- $name := printf "container %s" .name -}}
{{- $_ := set $contexts $name $own -}}
{{- $baseline = concat $baseline (list
  (list $own.privileged (printf "%s: privileged" $name))
  (list (ne ($own.procMount | default "Default") "Default") (printf "%s: procMount" $name))) -}}
{{- $restricted = concat $restricted (list
  (list (ne (toString $own.allowPrivilegeEscalation) "false") (printf "%s: allowPrivilegeEscalation is not false" $name))
  (list (not (has "ALL" (dig "capabilities" "drop" list $own))) (printf "%s: capabilities are not dropped" $name))) -}}
{{- range dig "capabilities" "add" list $own -}}
{{- $baseline = append $baseline (list (not (has . $capabilities)) (printf "%s: capability %s" $name .)) -}}
{{- $restricted = append $restricted (list (ne . "NET_BIND_SERVICE") (printf "%s: capability %s" $name .)) -}}
{{- end -}}
{{- range .ports -}}
{{- $baseline = append $baseline (list .hostPort (printf "%s: hostPort" $name)) -}}
{{- end -}}
{{- range $probe := list .livenessProbe .readinessProbe .startupProbe (dig "lifecycle" "postStart" nil .) (dig "lifecycle" "preStop" nil .) -}}
{{- range $kind := list "httpGet" "tcpSocket" -}}
{{- $baseline = append $baseline (list (dig $kind "host" "" ($probe | default dict)) (printf "%s: %s.host" $name $kind)) -}}
{{- end -}}
{{- end -}}
{{- $restricted = concat $restricted (list
  (list (not (hasKey $own "runAsNonRoot" | ternary $own.runAsNonRoot $pod.runAsNonRoot)) (printf "%s: runAsNonRoot is not true" $name))
  (list (not (has (dig "seccompProfile" "type" (dig "seccompProfile" "type" "" $pod) $own) (list "RuntimeDefault" "Localhost"))) (printf "%s: no seccompProfile" $name))) -}}
{{- end -}}
{{- range $name, $own := $contexts -}}
{{- $linux := $own.seLinuxOptions | default dict -}}
{{- $baseline = concat $baseline (list
  (list (eq (dig "seccompProfile" "type" "" $own) "Unconfined") (printf "%s: seccompProfile" $name))
  (list (eq (dig "appArmorProfile" "type" "" $own) "Unconfined") (printf "%s: appArmorProfile" $name))
  (list (dig "windowsOptions" "hostProcess" false $own) (printf "%s: hostProcess" $name))
  (list (or $linux.user $linux.role (not (has ($linux.type | default "") $types))) (printf "%s: seLinuxOptions" $name))) -}}
{{- $restricted = append $restricted (list (eq (toString $own.runAsUser) "0") (printf "%s: runAsUser is 0" $name)) -}}
{{- end -}}
{{- $level := .root.Values.podSecurity.level -}}
{{- $found := list -}}
{{- range eq $level "restricted" | ternary (concat $baseline $restricted) $baseline -}}
{{- if first . }}{{ $found = append $found (last .) }}{{ end -}}
{{- end -}}
{{- if $found -}}
{{- fail (printf "\n\n%s: its pod does not fit the Pod Security Standard %s: %s.\nRemove these fields from podTemplate and the security contexts. Whoever may allow them sets:\n\npodSecurity:\n  level: privileged\n" .path $level ($found | uniq | join "; ")) -}}
{{- end -}}
{{- end }}
