package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// live writes the bundle of a container below a state directory: namespace/id, name in the pod
// team/train or "", environment, and a record or "".
func live(t *testing.T, state, path, name, env, record string) (dir string) {
	t.Helper()
	dir = filepath.Join(state, "io.containerd.runtime.v2.task", path)
	annotations := "{}"
	if name != "" {
		annotations = `{"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-namespace": "team",
			"io.kubernetes.cri.sandbox-name": "train", "io.kubernetes.cri.container-name": "` + name + `"}`
		if name == "POD" {
			annotations = strings.Replace(annotations, `type": "container`, `type": "sandbox`, 1)
		}
	}
	write(t, filepath.Join(dir, "config.json"), `{"root": {"path": "rootfs"}, "process": {"env": ["`+env+`"]}, "annotations": `+annotations+`,
		"mounts": [{"destination": "/proc", "type": "proc"}], "linux": {"namespaces": [{"type": "mount"}]}}`)
	write(t, filepath.Join(dir, "rootfs/x"), "")
	if record != "" {
		write(t, filepath.Join(dir, gpuinject.RecordName), record)
	}
	return dir
}

// stateDir makes the only state directory that the tool knows, besides those of running shims.
func stateDir(t *testing.T) string {
	t.Helper()
	before := status.StateDirs
	t.Cleanup(func() { status.StateDirs = before })
	status.StateDirs = []string{t.TempDir()}
	return status.StateDirs[0]
}

const allDevices = "NVIDIA_VISIBLE_DEVICES=all"

func recordOf(id, why string) string {
	return `{"gpu": true, "reason": "` + why + `", "container": {"id": "` + id + `", "namespace": "k8s.io"}, "decisions": [{"subject": "GPU 0", "decision": "given", "reason": "as recorded"}]}`
}

func TestAContainerThatExistsIsExplained(t *testing.T) {
	d := simulate(t)
	state := stateDir(t)
	live(t, state, "k8s.io/live-0", "POD", allDevices, "")
	live(t, state, "k8s.io/live-11", "main", allDevices, recordOf("live-11", "main's"))
	live(t, state, "k8s.io/live-21", "sidecar", "A=B", "")
	live(t, state, "k8s.io/live-33", "other", allDevices, recordOf("live-33", "other's"))
	live(t, state, "default/live-33", "", "NVIDIA_VISIBLE_DEVICES=void", "")
	live(t, state, "default/stock", "", allDevices, "")
	live(t, state, "default/wrong", "", "NVIDIA_VISIBLE_DEVICES=9", "")
	hooked := live(t, state, "default/hooked", "", "", "")
	write(t, filepath.Join(hooked, "config.json"), `{"root": {"path": "rootfs"}, "process": {}, "linux": {"namespaces": [{"type": "mount"}]},
		"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}}`)
	for _, tc := range []struct{ args, reason, container string }{
		{"--container live-11", "main's", "k8s.io/live-11"},
		{"--container live-1", "main's", "k8s.io/live-11"},
		{"--container k8s.io/live-3", "other's", "k8s.io/live-33"},
		{"--pod team/train --container main", "main's", "k8s.io/live-11"},
		{"--pod team/train --container other", "other's", "k8s.io/live-33"},
		{"--pod team/train --container sidecar", "NVIDIA_VISIBLE_DEVICES is not set", "k8s.io/live-21"},
		{"--container live-0", "the sandbox container of a pod", "k8s.io/live-0"},
		{"--container default/live-33", `NVIDIA_VISIBLE_DEVICES="void"`, "default/live-33"},
		{"--container stock", "another runtime made it", "default/stock"},
		{"--container wrong", "another runtime made it", "default/wrong"},
		{"--container hooked", "another runtime made it", "default/hooked"},
	} {
		args := append(strings.Fields("--config "+d.ConfigPath+" --json plan"), strings.Fields(tc.args)...)
		var plan gpuinject.Plan
		decode(t, fine(t, args...), &plan)
		if !strings.Contains(plan.Reason, tc.reason) || plan.Container == nil || plan.Container.Namespace+"/"+plan.Container.ID != tc.container {
			t.Errorf("%s: %+v", tc.args, plan)
		}
	}
	contains(t, fine(t, "--config", d.ConfigPath, "plan", "--pod", "team/train", "--container", "main"),
		"container:    live-11 in k8s.io\n", "because:      GPU 0: given: as recorded\n")
	contains(t, fine(t, "--config", d.ConfigPath, "plan", "--pod", "team/train", "--container", "sidecar"),
		"container:    live-21 in k8s.io\npod:          train in team, container sidecar\nno GPU: ")
	for _, tc := range []struct{ args, want string }{
		{"--container live-", "live-0"}, {"--container live-33", "default/live-33, k8s.io/live-33"},
		{"--pod team/train", `: pod "team/train" may be k8s.io/live-11 ("team/train/main"), k8s.io/live-33 ("team/train/other"): choose with --container`},
		{"--container gone", `k8s.io/live-11 ("team/train/main"), k8s.io/live-33 ("team/train/other")`},
		{"--pod team/train --container none", `container "none" of pod "team/train" is not on this host`},
		{"--container gone", `container "gone" is not on this host (with a GPU: `},
		{"--pod other/train", `: pod "other/train" is not on this host`},
	} {
		code, out, errs := ctl(t, append(strings.Fields("--config "+d.ConfigPath+" plan"), strings.Fields(tc.args)...)...)
		if code != 1 || out != "" || !strings.Contains(errs, tc.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: status %d, %s%s", tc.args, code, out, errs)
		}
	}
}

// A record that other users could have written is not trusted.
func TestARecordOfOthersIsNotShown(t *testing.T) {
	state := stateDir(t)
	dir := live(t, state, "k8s.io/aa", "main", allDevices, recordOf("aa", "forged"))
	testtree.Check(t, os.Chmod(filepath.Join(dir, gpuinject.RecordName), 0o622))
	code, out, errs := ctl(t, "plan", "--container", "aa")
	if code != 1 || out != "" || !strings.Contains(errs, "is writable by users other than root") {
		t.Errorf("status %d, %s%s", code, out, errs)
	}
}
