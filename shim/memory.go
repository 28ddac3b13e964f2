package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/gpumemory"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

func newGPUMemory(c gpuinject.Container, p gpuinject.Plan) gpuMemory {
	m := gpuMemory{
		cannot: p.CannotLimitMemory(), stateDir: c.Config.Host.StateDir, namespace: c.Namespace,
		limits: p.Memory,
	}
	for _, gpu := range p.GPUs {
		m.uuids = append(m.uuids, gpu.UUID)
	}
	if c.Config.Policy.MemoryLimits == config.Ignore {
		m.cannot = "policy.memory-limits is \"ignore\""
	}
	m.max, _ = memlimit.Parse(c.Config.Policy.MaxMemoryLimit, 0) // valid, or empty
	return m
}

func (m gpuMemory) host() (h gpumemory.Host, err error) {
	h.Ask = ask
	h.State, err = state.Open(m.stateDir, false)
	return h, err
}

// limitMemory has the limits of a container set, whose init process pid waits to be started. It
// finds the container's cgroup, which an update needs.
func (c *gpuContainer) limitMemory(ctx context.Context, id string, pid int) (err error) {
	defer recovered(&err)
	m := &c.memory
	if m.cannot != "" || len(m.uuids) == 0 {
		return nil
	}
	m.cgroup, err = gpumemory.Find(pid)
	if err != nil && len(m.limits) == 0 {
		m.cannot = err.Error() // nothing was asked for
		return nil
	}
	if err == nil {
		err = m.set(ctx, id, m.limits)
	}
	if err != nil && wished(err, m.limits) {
		log.G(ctx).WithField("id", id).Warnf("nvidia: %s is ignored: %v", m.limits[0].From, err)
		m.cannot, m.limits = err.Error(), nil
		return nil
	}
	if err != nil {
		err = refuseLimits(err, m.limits) // guard: memory: no start without the limit
	}
	return err
}

// set sweeps up after shims that were killed, and sets limits.
func (m gpuMemory) set(ctx context.Context, id string, limits []memlimit.Limit) error {
	if len(limits) == 0 {
		return nil
	}
	h, err := m.host()
	if err != nil {
		return err
	}
	for _, err := range h.Sweep() {
		log.G(ctx).WithError(err).Warn("nvidia: a shim that has ended")
	}
	return h.Set(m.cgroup, m.namespace, id, limits)
}

// startLimited starts a container with limits, unless Delete takes them back.
func (s *Service) startLimited(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	s.limiting.Lock() // guard: memory: no start while limits are taken back
	defer s.limiting.Unlock()
	c := s.get(r.ID)
	_, err := c.permit(callStart, r.ID)
	if err == nil {
		err = s.checkCgroup(ctx, r.ID, c.memory)
	}
	if err != nil {
		return nil, toGRPC(err)
	}
	return s.TTRPCTaskService.Start(ctx, r)
}

// checkCgroup returns an error if a created container with limits has left the cgroup that has them.
func (s *Service) checkCgroup(ctx context.Context, id string, m gpuMemory) error {
	state, err := s.State(ctx, &taskapi.StateRequest{ID: id})
	if err != nil || state.Status != task.Status_CREATED {
		return nil // the embedded service refuses it
	}
	now, err := gpumemory.Find(int(state.Pid))
	if err == nil && now != m.cgroup { // guard: memory: no start in another cgroup
		err = fmt.Errorf("it was moved to %s", now.Path)
	}
	if err != nil {
		return verdict.Precondition("container %s is not in its cgroup %s, whose GPU memory is limited: %w: create it again", id, m.cgroup.Path, err)
	}
	return nil
}

// takeBackMemory takes the limits of a container back that is about to be deleted. Deletion goes on
// after an error: a GPU that hangs must not keep the container.
func (s *Service) takeBackMemory(ctx context.Context, id string) {
	if s.get(id).memory.cgroup == (gpumemory.Cgroup{}) {
		return
	}
	s.limiting.Lock() // guard: memory: no change while limits are taken back
	defer s.limiting.Unlock()
	c := s.get(id)
	if now := s.status(ctx, id); now != task.Status_STOPPED && now != task.Status_CREATED {
		return // Delete is refused
	}
	c.state = deleting // guard: memory: no start after limits are taken back
	s.update(id, c)
	m := c.memory
	h, err := m.host()
	if err == nil {
		err = fault.Point("take-back")
	}
	if err == nil {
		err = errors.Join(h.TakeBack(m.namespace, id), fault.Point("taken-back"))
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("id", id).Warn("nvidia: delete the container")
	}
}

// stopLimit is the time limit of NVML in `delete`, which containerd ends after five seconds.
const stopLimit = time.Second

// takeBackMemoryOf does the same for a container whose shim was killed.
func takeBackMemoryOf(ctx context.Context, id string) error {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	cfg, err := config.Find("")
	if err != nil {
		return err
	}
	st, err := state.Open(cfg.Host.StateDir, true)
	if err != nil {
		return err
	}
	h := gpumemory.Host{State: st, Ask: func(q probe.Questions) probe.Answers {
		q.Timeout = stopLimit
		return ask(q)
	}}
	return h.TakeBack(namespace, id)
}

// limit changes the limits of a container by the annotations of an update.
func (s *Service) limit(ctx context.Context, id string, annotations map[string]string) error {
	wish, err := memlimit.ReadUpdate(annotations)
	if err != nil {
		return verdict.Invalid("%w", err)
	}
	s.pausing.Lock()
	defer s.pausing.Unlock()
	s.limiting.Lock()
	defer s.limiting.Unlock()
	c := s.get(id)
	if _, err := c.permit(callLimit, id); err != nil {
		return err
	}
	m := &c.memory
	if m.cannot == "" && len(m.uuids) == 0 {
		m.cannot = "it has no whole GPU"
	}
	if m.cannot == "" && s.status(ctx, id) == task.Status_STOPPED {
		m.cannot = "it has ended"
	}
	if m.cannot != "" {
		return verdict.Precondition("the GPU memory of container %s cannot be limited: %s", id, m.cannot)
	}
	limits, err := memlimit.Change(wish, m.max, m.uuids, m.limits)
	if err != nil {
		return err
	}
	if err = m.change(ctx, id, limits); err == nil {
		err = fault.Point("limit-changed")
	}
	if err != nil {
		if probe.MemoryCause(err) == "" { // the probe may have been killed when it had set them
			m.restore(ctx, id, limits)
		}
		return refuseLimits(err, limits)
	}
	for _, l := range limits {
		m.limits = slices.DeleteFunc(slices.Clone(m.limits), func(old memlimit.Limit) bool { return old.UUID == l.UUID })
		if l.Limit != 0 || l.Request != 0 {
			m.limits = append(m.limits, l)
		}
	}
	if s.update(id, c) {
		err = gpuinject.RecordMemory(c.bundle, m.limits)
	}
	return err
}

// change sets new limits, unless more is in use: the kernel would accept that, and every further
// allocation would fail.
func (m *gpuMemory) change(ctx context.Context, id string, limits []memlimit.Limit) error {
	h, err := m.host()
	if err != nil {
		return err
	}
	used, err := h.Use(m.cgroup, m.uuids)
	if err != nil {
		return err
	}
	for _, l := range limits {
		if now := used[l.UUID]; l.Limit != 0 && now > l.Limit {
			return fmt.Errorf("GPU %s: %d MiB: %w", l.UUID, now/memlimit.MiB, probe.ErrBelowUse)
		}
	}
	return m.set(ctx, id, limits)
}

// restore sets the limits that the GPUs of changed had before.
func (m gpuMemory) restore(ctx context.Context, id string, changed []memlimit.Limit) {
	var before []memlimit.Limit
	for _, l := range changed {
		i := slices.IndexFunc(m.limits, func(old memlimit.Limit) bool { return old.UUID == l.UUID })
		if i < 0 {
			before = append(before, memlimit.Limit{UUID: l.UUID})
		} else {
			before = append(before, m.limits[i])
		}
	}
	if err := m.set(ctx, id, before); err != nil {
		log.G(ctx).WithError(err).WithField("id", id).Warn("nvidia: restore the limits of GPU memory")
	}
}

// checkMemory returns an error if the memory of a suspended container exceeds its limits on the GPUs
// that it is moved to.
func (c gpuContainer) checkMemory(id string) error {
	needs := map[string]uint64{}
	for _, memory := range c.held {
		for uuid, bytes := range memory {
			needs[cmp.Or(c.placement[uuid], uuid)] += bytes
		}
	}
	for _, l := range c.memory.limits {
		if l.Limit != 0 && needs[l.UUID] > l.Limit {
			return verdict.Precondition("cannot resume container %s: it needs %d MiB on GPU %s, and its limit is %d MiB: raise it (nvidia-shimctl limit)", id, needs[l.UUID]/memlimit.MiB, l.UUID, l.Limit/memlimit.MiB)
		}
	}
	return nil
}

// unable are the causes for which nothing can be limited on this host, and what to do.
var unable = []struct {
	cause error
	fix   string
}{
	{probe.ErrNoMemoryLimits, "use driver 615 or newer"},
	{probe.ErrNotLimitable, "turn MIG off, and the module's option RmMemacctMode on"},
	{probe.ErrNoController, "use runc, which enables the controller dmem for its cgroups, as BinaryName: crun does not"},
	{probe.ErrNotCgroup2, "start the host with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)"},
	{probe.ErrNotPersistent, ""}, // it says that
	{probe.ErrNotPermitted, "run containerd as root of the host"},
	{gpumemory.ErrNotOwn, "give each container a cgroup of its own"},
}

// wished reports whether an error means that this host cannot limit memory, and only requests would
// be lost.
func wished(err error, limits []memlimit.Limit) bool {
	for _, u := range unable {
		if errors.Is(err, u.cause) {
			return !slices.ContainsFunc(limits, func(l memlimit.Limit) bool { return l.Limit != 0 })
		}
	}
	return false
}

// refuseLimits returns the error of a container that cannot have its limits, with what to do.
func refuseLimits(err error, limits []memlimit.Limit) error {
	kind, fix := verdict.KindPrecondition, "see the driver's messages in the kernel log (NVRM)"
	for _, u := range unable {
		if errors.Is(err, u.cause) {
			fix = u.fix
		}
	}
	switch {
	case errors.Is(err, probe.ErrInvalidLimit):
		kind, fix = verdict.KindInvalid, "ask for at most the GPU's memory (nvidia-smi)"
	case errors.Is(err, probe.ErrBelowUse):
		fix = "ask for more than is in use (nvidia-shimctl status)"
	}
	if fix != "" {
		fix = ": " + fix
	}
	return &verdict.Error{Kind: kind, Err: fmt.Errorf("%q limits GPU memory: %w%s, or remove it", limits[0].From, err, fix)}
}

func limitsMemory(annotations map[string]string) bool {
	_, limit := annotations[memlimit.AnnotationLimit]
	_, request := annotations[memlimit.AnnotationRequest]
	return limit || request
}
