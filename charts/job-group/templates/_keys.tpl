{{/* Generated from values.yaml by `make generate`. */}}
{{- define "job-group.keys" -}}
[name, layout, runId, tasks, primaryTasks, onFailure, interConnection, secretName, files, image, image.repository, image.tag,
  image.digest, image.pullPolicy, helperImage, helperImage.repository, helperImage.tag, helperImage.digest, imagePullSecrets,
  commonLabels, commonAnnotations, workloadLabels, workloadAnnotations, extraObjects, barrier, barrier.timeoutSeconds,
  kueue, kueue.queueName, kueue.priorityClass, kueue.requiredTopology, placement, placement.topologyKey, accelerators,
  accelerators.resourceName, accelerators.nodeLabel, accelerators.types, sharedMemory, sharedMemory.sizeLimit, agent,
  agent.resources, networkPolicy, networkPolicy.enabled, networkPolicy.ingress, networkPolicy.restrictEgress, networkPolicy.egress,
  authentication, authentication.secretName, authentication.secretKey, clusterDomain, terminationGracePeriodSeconds, nodeSelector,
  tolerations, priorityClassName, podTemplate, podSecurityContext, containerSecurityContext]
{{- end }}
