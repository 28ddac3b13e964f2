package testenv

import (
	"os/exec"
	"regexp"
	"testing"
)

// GPU is one GPU as the host's own nvidia-smi lists it.
type GPU struct{ Line, Index, UUID string }

var listed = regexp.MustCompile(`(?m)^GPU (\d+): .* \(UUID: (GPU-[0-9a-f-]+)\)$`)

// HostGPUs asks the host's nvidia-smi, by index.
func HostGPUs(t testing.TB) (gpus []GPU) {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "-L").Output()
	for _, m := range listed.FindAllStringSubmatch(string(out), -1) {
		gpus = append(gpus, GPU{m[0], m[1], m[2]})
	}
	if err != nil || len(gpus) == 0 {
		t.Fatalf("nvidia-smi -L on the host: %v: %s", err, out)
	}
	return gpus
}
