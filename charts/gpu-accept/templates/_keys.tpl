{{/* Generated from values.yaml by `make generate`. */}}
{{- define "gpu-accept.keys" -}}
[workload, device, gpusPerNode, level, burnInSeconds, checks, runId, limits, expect, inject, volumes, volumes.datasets,
  volumes.datasets.claimName, volumes.outputs, volumes.outputs.claimName, fleet, fleet.deadlineSeconds, fleet.claimName,
  fleet.listPods, fleet.resources, fleet.podTemplate, world, world.enabled, world.checks, world.args, kueue, kueue.queueName,
  kueue.priorityClass, networkPolicy, networkPolicy.enabled, networkPolicy.ingress, networkPolicy.restrictEgress, networkPolicy.egress,
  authentication, authentication.secretName, authentication.secretKey, env, image, image.repository, image.tag, image.digest,
  image.pullPolicy, helperImage, helperImage.repository, helperImage.tag, helperImage.digest, imagePullSecrets, commonLabels,
  commonAnnotations, workloadLabels, workloadAnnotations, extraObjects, resources, gpuResourceName, sharedMemory, sharedMemory.sizeLimit,
  priorityClassName, nodeSelector, tolerations, podTemplate, nameOverride, fullnameOverride, podSecurityContext, containerSecurityContext]
{{- end }}
