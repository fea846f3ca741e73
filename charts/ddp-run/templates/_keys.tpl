{{/* Generated from values.yaml by `make generate`. */}}
{{- define "ddp-run.keys" -}}
[nodes, gpusPerNode, program, program.preset, program.args, program.image, program.python, resources, env, volumes, volumes.datasets,
  volumes.datasets.claimName, volumes.datasets.readOnly, volumes.outputs, volumes.outputs.claimName, volumes.models, volumes.models.claimName,
  volumes.models.readOnly, kueue, kueue.queueName, kueue.priorityClass, maxRestarts, runName, runId, workload, launcher,
  nodeSelector, tolerations, priorityClassName, podTemplate, image, image.repository, image.tag, image.digest, image.pullPolicy,
  imagePullSecrets, sharedMemory, sharedMemory.sizeLimit, placement, placement.onePodPerNode, placement.topologyKey, terminationGracePeriodSeconds,
  maxRestartsInPlace, timeouts, timeouts.joinSeconds, timeouts.heartbeatSeconds, timeouts.collectiveSeconds, timeouts.exitSeconds,
  timeouts.progressSeconds, progressAction, preflight, preflight.nodeTest, spares, network, network.interface, rendezvous,
  rendezvous.backend, rendezvous.port, rendezvous.etcd, rendezvous.etcd.deploy, rendezvous.etcd.image, rendezvous.etcd.endpoint,
  rendezvous.etcd.podTemplate, networkPolicy, networkPolicy.enabled, networkPolicy.ingress, networkPolicy.restrictEgress,
  networkPolicy.egress, authentication, authentication.secretName, authentication.secretKey, commonLabels, commonAnnotations,
  workloadLabels, workloadAnnotations, extraObjects, gpuResourceName, clusterDomain, nameOverride, fullnameOverride, podSecurityContext,
  containerSecurityContext]
{{- end }}
