{{/* Generated from values.yaml by `make generate`. */}}
{{- define "gpu-accept.keys" -}}
[gpusPerNode, device, level, burnInSeconds, checks, world, world.enabled, world.checks, world.args, volumes, volumes.datasets,
  volumes.datasets.claimName, volumes.outputs, volumes.outputs.claimName, workload, runId, patrol, patrol.schedule, patrol.percent,
  nodeActions, nodeActionsDryRun, fleet, fleet.deadlineSeconds, fleet.claimName, fleet.listPods, fleet.podTemplate, nodeSelector,
  tolerations, resources, env, podTemplate, kueue, kueue.queueName, kueue.priorityClass, priorityClassName, image, image.repository,
  image.tag, image.digest, image.pullPolicy, helperImage, helperImage.repository, helperImage.tag, helperImage.digest,
  imagePullSecrets, expect, limits, inject, sharedMemory, sharedMemory.sizeLimit, networkPolicy, networkPolicy.enabled,
  networkPolicy.ingress, networkPolicy.restrictEgress, networkPolicy.egress, authentication, authentication.secretName,
  authentication.secretKey, commonLabels, commonAnnotations, workloadLabels, workloadAnnotations, extraObjects, gpuResourceName,
  nameOverride, fullnameOverride, podSecurityContext, containerSecurityContext]
{{- end }}
