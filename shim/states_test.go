package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/grpc/status"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
)

var stateNames = [states]string{"unknown", "creating", "ready", "suspended", "restoring", "not restored", "deleting"}

// Each cell has the calls of the embedded service, what the probe moves, the state afterwards if it
// is another one, and the code of the error.
func TestEachCallInEachState(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	reap(t)
	const no, exists = "FailedPrecondition", "AlreadyExists"
	ctx, bundle := t.Context(), simulatedHost(t, admin)
	for what, row := range [calls]struct {
		name string
		call func(s *Service) error
		want [states]string
	}{
		callCreate: {"Create", func(s *Service) error {
			_, err := s.Create(ctx, &taskapi.CreateTaskRequest{ID: "c", Bundle: bundle})
			return err
		}, [states]string{"create; ready", exists, exists, exists, exists, exists, exists}},
		callStart: {"Start", func(s *Service) error {
			_, err := s.Start(ctx, &taskapi.StartRequest{ID: "c"})
			return err
		}, [states]string{"start", no, "start", "start", "start, to-GPU; ready", no, no}},
		callStartExec: {"Start of a process", func(s *Service) error {
			_, err := s.Start(ctx, &taskapi.StartRequest{ID: "c", ExecID: "e"})
			return err
		}, [states]string{"start", no, "start", "start", no, no, no}},
		callExec: {"Exec", func(s *Service) error {
			_, err := s.Exec(ctx, &taskapi.ExecProcessRequest{ID: "c", ExecID: "e"})
			return err
		}, [states]string{"exec", no, "exec", "exec", no, no, no}},
		callPause: {"Pause", func(s *Service) error {
			_, err := s.Pause(ctx, &taskapi.PauseRequest{ID: "c"})
			return err
		}, [states]string{"pause", "pause", "pause, to-host; suspended", "pause, to-host", "pause", no, no}},
		callResume: {"Resume", func(s *Service) error {
			_, err := s.Resume(ctx, &taskapi.ResumeRequest{ID: "c"})
			return err
		}, [states]string{"resume", "resume", "resume", "resume, to-GPU; ready", "resume", no, no}},
		callCheckpoint: {"Checkpoint", func(s *Service) error {
			_, err := s.Checkpoint(ctx, &taskapi.CheckpointTaskRequest{ID: "c", Path: t.TempDir()})
			return err
		}, [states]string{"checkpoint", "checkpoint", "pause checkpoint-without-mask resume, to-host to-GPU", "checkpoint-without-mask", "checkpoint", no, no}},
		callPlace: {"Update with a GPU for Resume", func(s *Service) error {
			_, err := s.Update(ctx, &taskapi.UpdateTaskRequest{ID: "c", Annotations: map[string]string{gpuinject.AnnotationResumeGPU: "0"}})
			return err
		}, [states]string{no, no, no, "", no, no, no}},
		callLimit: {"Update with a limit", func(s *Service) error {
			_, err := s.Update(ctx, &taskapi.UpdateTaskRequest{ID: "c", Annotations: map[string]string{memlimit.AnnotationLimit: "7=1Gi"}})
			return err
		}, [states]string{no, no, "InvalidArgument", "InvalidArgument", no, no, no}},
		callDelete: {"Delete", func(s *Service) error {
			_, err := s.Delete(ctx, &taskapi.DeleteRequest{ID: "c"})
			return err
		}, [states]string{"delete", "delete; unknown", "delete; unknown", "delete; unknown", "delete; unknown", "delete; unknown", "delete; unknown"}},
	} {
		for state := range states {
			t.Run(row.name+" "+stateNames[state], func(t *testing.T) {
				f := &checkpointTasks{}
				// A container that Pause is for is not frozen, even if it is suspended.
				switch call(what) {
				case callResume, callPlace:
					f.paused = true
				case callCheckpoint:
					f.paused = state == suspended
				}
				if got := f.effect(t, state, row.call); got != row.want[state] {
					t.Errorf("%q, want %q", got, row.want[state])
				}
			})
		}
	}
}

// effect makes a call for a container in this state and returns what it did.
func (f *checkpointTasks) effect(t *testing.T, state containerState, call func(*Service) error) string {
	t.Helper()
	log := filepath.Join(t.TempDir(), "moved")
	putProbe(t, fmt.Sprintf(`case "$questions" in *'"suspend"'*) echo to-host;; *) echo to-GPU;; esac >>%s; echo '{"moved":[4711]}'`, log))
	s := f.serviceWith(t, gpuContainer{state: state, suspendsGPU: true, gpus: []gpuinject.PlanGPU{{UUID: "GPU-a"}}, memory: gpuMemory{uuids: []string{"GPU-a"}}})
	c := s.get("c")
	c.held[4711] = map[string]uint64{"GPU-a": 1}
	s.update("c", c)
	if state == unknown {
		s.remove("c")
	}
	err := call(s)
	done := strings.Join(f.calls, " ")
	if moved, _ := os.ReadFile(log); len(moved) > 0 {
		done += ", " + strings.Join(strings.Fields(string(moved)), " ")
	}
	if f.config != "" {
		done = strings.Replace(done, "checkpoint", "checkpoint-without-mask", 1)
	}
	if after := s.get("c").state; after != state {
		done += "; " + stateNames[after]
	}
	if err != nil {
		done += status.Code(err).String()
	}
	return done
}
