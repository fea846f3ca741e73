{{/* Generated from values.yaml by `make generate`. */}}
{{- define "job-group.keys" -}}
[name, tasks, primaryTasks, onFailure, files, secretName, workload, runId, kueue, kueue.queueName, kueue.priorityClass,
  kueue.requiredTopology, nodeSelector, tolerations, priorityClassName, podTemplate, image, image.repository, image.tag,
  image.digest, image.pullPolicy, helperImage, helperImage.repository, helperImage.tag, helperImage.digest, imagePullSecrets,
  sharedMemory, sharedMemory.sizeLimit, gpuResourceName, accelerators, accelerators.nodeLabel, accelerators.types, placement,
  placement.topologyKey, interConnection, timeouts, timeouts.joinSeconds, preflight, preflight.nodeTest, agent, agent.resources,
  terminationGracePeriodSeconds, networkPolicy, networkPolicy.enabled, networkPolicy.ingress, networkPolicy.restrictEgress,
  networkPolicy.egress, authentication, authentication.secretName, authentication.secretKey, commonLabels, commonAnnotations,
  workloadLabels, workloadAnnotations, extraObjects, clusterDomain, podSecurityContext, containerSecurityContext]
{{- end }}
