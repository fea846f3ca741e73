{{/* Generated from values.yaml by `make generate`. */}}
{{- define "ddp-run.keys" -}}
[workload, nodes, gpusPerNode, runName, runId, program, program.preset, program.args, program.image, program.python, launcher,
  rendezvous, rendezvous.backend, rendezvous.port, rendezvous.etcd, rendezvous.etcd.deploy, rendezvous.etcd.image, rendezvous.etcd.endpoint,
  rendezvous.etcd.resources, rendezvous.etcd.podTemplate, timeouts, timeouts.joinSeconds, timeouts.heartbeatSeconds, timeouts.collectiveSeconds,
  timeouts.exitSeconds, timeouts.progressSeconds, progressAction, maxRestartsInPlace, maxRestarts, network, network.interface,
  volumes, volumes.datasets, volumes.datasets.claimName, volumes.datasets.readOnly, volumes.outputs, volumes.outputs.claimName,
  volumes.models, volumes.models.claimName, volumes.models.readOnly, networkPolicy, networkPolicy.enabled, networkPolicy.ingress,
  networkPolicy.restrictEgress, networkPolicy.egress, authentication, authentication.secretName, authentication.secretKey,
  kueue, kueue.queueName, kueue.priorityClass, placement, placement.onePodPerNode, placement.topologyKey, env, image,
  image.repository, image.tag, image.digest, image.pullPolicy, imagePullSecrets, commonLabels, commonAnnotations, workloadLabels,
  workloadAnnotations, extraObjects, resources, gpuResourceName, sharedMemory, sharedMemory.sizeLimit, clusterDomain,
  terminationGracePeriodSeconds, priorityClassName, nodeSelector, tolerations, podTemplate, nameOverride, fullnameOverride,
  podSecurityContext, containerSecurityContext]
{{- end }}
