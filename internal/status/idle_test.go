package status

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// idleStatus has containers that are suspended when idle, with these ids, and the container other.
func idleStatus(ids ...string) *Status {
	s := &Status{Containers: []Container{{Record: Record{PlanContainer: gpuinject.PlanContainer{ID: "other", Namespace: "default"}}}}}
	for _, id := range ids {
		r := Record{PlanContainer: gpuinject.PlanContainer{ID: id, Namespace: "default"}, plan: gpuinject.Plan{SuspendIdle: 60}}
		s.Containers = append(s.Containers, Container{Record: r})
	}
	return s
}

func TestIdleContainersAreShown(t *testing.T) {
	dir := t.TempDir()
	since := time.Date(2026, 11, 28, 12, 0, 0, 0, time.Local)
	testtree.Check(t, WriteIdle(dir, IdleFile{Time: time.Now(), Containers: map[string]Idle{
		"default/idle": {After: 60, Since: since}, "default/busy": {After: 60, Reason: "GPU 0 works"},
		"default/gone": {After: 60, Suspended: true}, "default/other": {Since: since},
	}}))
	s := idleStatus("idle", "busy", "gone", "new")
	s.Containers[3].Suspended = &since
	s.AddIdle(dir)
	var text bytes.Buffer
	s.printContainers(term.New(&text))
	for _, want := range []string{"SUSPENDED  ON THE HOST  SINCE                BECAUSE\ngone       0 MiB        2026-11-28 12:00:00  idle\n",
		"IDLE  SINCE                SUSPENDED AFTER  OR NOT, BECAUSE\n" +
			"idle  2026-11-28 12:00:00  1m0s             -\nbusy  -                    1m0s             GPU 0 works\nnew   -                    1m0s             nothing watches it\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s\nwant\n%s", text.String(), want)
		}
	}
}

// Whatever another user may have written, or is old, says nothing.
func TestAFileOfIdleContainersThatDoesNotCount(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"old": func(dir string) error {
			return WriteIdle(dir, IdleFile{Time: time.Now().Add(-time.Hour), Containers: map[string]Idle{"default/idle": {}}})
		},
		"absent":    func(dir string) error { return os.Remove(filepath.Join(dir, idleName)) },
		"broken":    func(dir string) error { return os.WriteFile(filepath.Join(dir, idleName), []byte("{"), 0o600) },
		"another's": func(dir string) error { return os.Chmod(filepath.Join(dir, idleName), 0o622) },
	} {
		dir := t.TempDir()
		testtree.Check(t, WriteIdle(dir, IdleFile{Time: time.Now(), Containers: map[string]Idle{"default/idle": {}}}))
		testtree.Check(t, spoil(dir))
		s := idleStatus("idle")
		s.AddIdle(dir)
		if got := s.Containers[1].Idle; got == nil || got.Reason != "nothing watches it" || got.After != 60 || s.Containers[0].Idle != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
