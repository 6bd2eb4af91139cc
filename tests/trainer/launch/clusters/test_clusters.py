"""Sections of clusters: names that Kubernetes does not know are refused with the nearest name."""

from __future__ import annotations

import pytest
from kubeflow_trainer_api.models import (
    IoK8sApiCoreV1Container,
    IoK8sApiCoreV1PodSpec,
    IoK8sApiCoreV1Volume,
)

from atroposlib.errors import ConfigError
from example_trainer.launch import clusters
from tests.trainer.launch.launch_plans import plan


@pytest.mark.parametrize(
    "names, model",
    [
        (clusters.POD_FIELDS, IoK8sApiCoreV1PodSpec),
        (clusters.CONTAINER_FIELDS, IoK8sApiCoreV1Container),
        (clusters.VOLUME_FIELDS, IoK8sApiCoreV1Volume),
    ],
    ids=("pod", "container", "volume"),
)
def test_the_known_fields_are_those_of_the_published_models(names, model):
    published = {field.alias or name for name, field in model.model_fields.items()}
    assert set(names) == published and len(names) == len(published)


@pytest.mark.parametrize(
    "word, problem",
    [
        (
            "k8s.pod={nodeSelectr: {a: b}}",
            "k8s.pod: nodeSelectr is not a field of a pod; did you mean nodeSelector?",
        ),
        (
            "k8s.pod={containers: [{name: api, securtyContext: {}}]}",
            "securtyContext is not a field of containers; did you mean securityContext?",
        ),
        (
            "k8s.pod={volumes: [{name: a, persistentVolumeClaims: {}}]}",
            "persistentVolumeClaims is not a field of volumes; did you mean persistentVolumeClaim?",
        ),
        (
            "k8s.container={volumeMount: []}",
            "volumeMount is not a field of a container; did you mean volumeMounts?",
        ),
        ("k8s.resources={apii: {cpu: 1}}", "apii is not a role; did you mean api?"),
        ("k8s.pod={restartPolicy: OnFailure}", "restartPolicy is Never"),
        (
            "k8s.container={command: [sh]}",
            "command of the container of a role is the launcher's",
        ),
        ("k8s.pod={containers: [{name: api, args: [a]}]}", "args of the container of a role"),
        ("k8s.pod={volumes: {models: {}}}", "volumes is a list"),
        ("k8s.container={env: [HF_TOKEN]}", "each entry of env needs name, not 'HF_TOKEN'"),
        (
            "k8s.container={volumeMounts: [{name: a}]}",
            "each entry of volumeMounts needs mountPath",
        ),
        ("k8s.pod={tolerations: [gpu]}", "tolerations is a list of mappings"),
        ("k8s.await_end=[trainers]", "k8s.await_end"),
    ],
)
def test_a_name_that_no_cluster_knows_is_refused(word, problem):
    with pytest.raises(ConfigError) as refused:
        plan(word)
    assert problem in str(refused.value)


def test_fields_may_stand_below_each_other_and_numbers_are_quantities():
    found = plan("k8s.pod.hostNetwork=true", "k8s.resources.api.cpu=0.5").k8s
    assert found.pod == {"hostNetwork": True}
    assert found.resources == {"api": {"cpu": 0.5}}
