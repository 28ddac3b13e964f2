package shim

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"time"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// asking returns a function that calls ask and adds a failure to the events of the host.
func asking(cfg *config.Config) question.Ask {
	return probe.ForContainer(func(q probe.Questions) probe.Answers {
		a := ask(q)
		if a.FactsError != "" || a.PodError != "" {
			addEvent(cfg, state.Event{Kind: state.ProbeFailed, Reason: cmp.Or(a.FactsError, a.PodError)})
		}
		return a
	})
}

// ask asks the probe beside the shim. The name of the configuration file comes from containerd's
// environment.
func ask(q probe.Questions) probe.Answers {
	q.Config = os.Getenv(config.EnvFile)
	return probe.Ask(probe.Beside, startProbe, q)
}

// versionsOf returns what each program, looked for in PATH as by runc and this process, prints as its
// version. The probe executes them.
func versionsOf(programs ...string) ([]string, error) {
	q := probe.Questions{}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		q.Programs = append(q.Programs, path)
	}
	a := ask(q)
	if a.VersionsError != "" {
		return nil, errors.New(a.VersionsError)
	}
	if len(a.Versions) != len(programs) {
		return nil, errors.New("nvidia-shimctl is of another version than the shim")
	}
	return a.Versions, nil
}

// startProbe starts a process that the reaper waits for: this process reaps every child that ends,
// so a wait for one child loses the race (containerd issue 2855).
func startProbe(cmd *exec.Cmd) (wait func(limit time.Duration) (status int, err error), err error) {
	exits, err := reaper.Default.StartLocked(cmd)
	if err != nil {
		return nil, err
	}
	return func(limit time.Duration) (int, error) { return reaper.Default.WaitTimeout(cmd, exits, limit) }, nil
}
