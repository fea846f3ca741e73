"""Ways out that the messages name: they fit the mistake, and what Kubernetes or the chart would
refuse is refused.
"""

import pytest

from tests.generator.diagnostic_lines import brief

POD = "$.config.kubernetes.pod_config.spec"
HEADER = "name: rl\nexecution: parallel\n"


def pod(spec: str) -> str:
    return f"config: {{kubernetes: {{pod_config: {{spec: {spec}}}}}}}"


def test_fields_of_the_header_that_belong_elsewhere(errors, values):
    (error,) = errors(f"{HEADER}envs: {{A: s3cret}}\n---\nname: t\n")
    assert brief(error) == "3:1 $.envs refused-field" and "--env" in error and "s3cret" not in error
    _, (note,) = values(f"{HEADER}description: text\n---\nname: t\n")
    assert brief(note) == "3:1 $.description ignored-field"


# A part of a pod's spec | the path below it and the code of the error | a word of its way out.
REFUSED = """\
{tolerationss: []} | .tolerationss unknown-field | "tolerations"
{tolerations: [{kye: a}]} | .tolerations[0].kye unknown-field | "key"
{nodeSelector: {a: 1}} | .nodeSelector.a wrong-type | text
{securityContext: {privileged: true}} | .securityContext.privileged unknown-field |
{terminationGracePeriodSeconds: 600} | .terminationGracePeriodSeconds refused-field | the chart's
{ephemeralContainers: []} | .ephemeralContainers refused-field | kubectl debug
{volumes: [{name: tmp, emptyDir: {}}]} | .volumes[0].name bad-value | chart
{volumes: [{emptyDir: {}}]} | .volumes[0] missing-field | name
{containers: [{env: [{name: A, value: 1}]}]} | .containers[0].env[0].value wrong-type | quotes
{containers: [{restartPolicy: Always}]} | .containers[0].restartPolicy refused-field | job_recovery
{containers: [{securityContext: {privileged: true}}]} | .containers[0].securityContext missing-field | Escalation
"""


@pytest.mark.parametrize("row", REFUSED.splitlines())
def test_what_kubernetes_or_the_chart_would_refuse_or_ignore_is_refused(task_error, row):
    spec, expected, word = row.split(" |")
    error = task_error(f"name: t\n{pod(spec)}\n")
    assert brief(error) == POD + expected.strip() and word.strip() in error


def test_a_misspelt_setting_of_kubernetes_is_refused(task_error):
    error = task_error("name: t\nconfig: {kubernetes: {provison_timeout: 1}}\n")
    assert brief(error) == "$.config.kubernetes.provison_timeout unknown-field"


def test_a_template_is_recognized(errors):
    (error,) = errors(f"{HEADER}---\nname: t\n{{% if x %}}\nnum_nodes: 2\n{{% endif %}}\n")
    assert "[not-yaml]" in error and "render" in error


ACCEPTED = [
    "{securityContext: {runAsUser: 0, runAsNonRoot: false}, hostIPC: true, tolerations: [{operator: Exists}]}",
    "{containers: [{securityContext: {privileged: true, allowPrivilegeEscalation: true}, envFrom: []}]}",
    "{volumes: [{name: shm, emptyDir: {medium: Memory}}], containers: [{volumeMounts: [{name: shm, mountPath: /x}]}]}",
    "{affinity: {}, topologySpreadConstraints: [], runtimeClassName: nvidia, schedulerName: x, priority: 3}",
]


@pytest.mark.parametrize("spec", ACCEPTED)
def test_pod_config_that_works_is_accepted(task_values, spec):
    assert task_values(f"name: t\n{pod(spec)}\n")["podTemplate"]["spec"]


def test_a_template_in_place_of_a_value_is_the_only_error(errors):
    tasks = "---\nname: {{ task }}\nnum_nodes: {{ n }}\nresources: {infra: {{cloud}}, image_id: {{image}}}\n"
    (found,) = errors("name: {{name}}\nexecution: parallel\n" + tasks)
    assert found.startswith("1:8: ") and "[yaml-key]" in found and "Jinja" in found


IMAGE = "image_id: docker:pytorch/pytorch:2.9.0"


def test_the_launcher_is_that_of_the_file_or_of_the_command_line(values):
    group = "name: rl\nexecution: parallel\n---\nname: t\nlauncher: torchrun\n"
    group += f"resources: {{{IMAGE}}}\nrun: torchrun a.py\n"
    assert values(group)[0]["tasks"]["t"]["launcher"] == "torchrun"
    assert values(group, "--launcher", "ddp-launch")[0]["tasks"]["t"]["launcher"] == "ddp-launch"
