package gpuinject

import (
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func TestTheDirectoryOfTheDeviceListWhereMountsDoNotCount(t *testing.T) {
	cfg := hostConfig(t)
	ask := "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"
	_, err := ExamineSpec(newSpec(ask), loading(cfg))
	refused(t, err, Invalid, "the container has none")
	cfg.Policy.AcceptVolumeMounts = false
	spec := newSpec(ask)
	spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devices/0"})
	_, err = ExamineSpec(spec, loading(cfg))
	refused(t, err, Denied, "policy.accept-volume-mounts is false")
	cfg.Policy.AcceptVolumeMounts = true
	job, err := resolve(t, cfg, spec)
	if err != nil || len(job.Plan.GPUs) != 1 {
		t.Errorf("%+v, %v", job.Plan.GPUs, err)
	}
}

func TestSwarmsVariablesCountOnlyWhereTheyAreConfigured(t *testing.T) {
	cfg := hostConfig(t)
	spec := newSpec("DOCKER_RESOURCE_GPU=2")
	if job, err := ExamineSpec(spec, loading(cfg)); job != nil || err != nil {
		t.Errorf("%+v, %v", job, err)
	}
	cfg.Policy.SwarmResources = []string{"DOCKER_RESOURCE_GPU"}
	job, err := resolve(t, cfg, spec)
	if err != nil || len(job.Plan.GPUs) != 1 || job.Plan.GPUs[0].Index != 2 {
		t.Errorf("%+v, %v", job.Plan.GPUs, err)
	}
	// A pod with such a variable does not meet the configuration, broken or not.
	job, err = ExamineSpec(pod(t, "default", nil, "DOCKER_RESOURCE_GPU=2"), func() (*config.Config, error) {
		return nil, errors.New("configuration /etc/x: line 3: unknown key")
	})
	if job != nil || err != nil {
		t.Errorf("a pod: %+v, %v", job, err)
	}
	if !mightAsk([]byte(`{"env": ["DOCKER_RESOURCE_GPU=2"]}`)) {
		t.Error("the first look passes such a container over")
	}
}
