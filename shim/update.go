package shim

import (
	"context"
	"encoding/json"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
)

// Update changes the container's resources except devices. The kubelet sends the device rules
// that containerd knows, without those that Create added; runc ignores them (update.go,
// SkipDevices), but crun would remove the GPUs. Annotations say where the next Resume moves GPU
// memory, and limit it.
func (s *Service) Update(ctx context.Context, r *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
	limits := limitsMemory(r.Annotations)
	text, places := r.Annotations[gpuinject.AnnotationResumeGPU]
	var err error
	if limits {
		err = s.limit(ctx, r.ID, r.Annotations)
	}
	if err == nil && places {
		err = s.place(ctx, r.ID, text)
	}
	switch {
	case err != nil:
		return nil, toGRPC(err)
	case (limits || places) && r.Resources == nil:
		return &emptypb.Empty{}, nil
	}
	r.Resources = withoutDevices(r.Resources)
	return s.TTRPCTaskService.Update(ctx, r)
}

// withoutDevices removes the member devices from a LinuxResources in JSON. Any other message is
// left as it is, for the embedded service to reject.
func withoutDevices(any *anypb.Any) *anypb.Any {
	var resources map[string]json.RawMessage
	if any == nil || json.Unmarshal(any.GetValue(), &resources) != nil {
		return any
	}
	if _, ok := resources["devices"]; !ok {
		return any
	}
	delete(resources, "devices") // guard: shim: devices kept by updates
	value, err := json.Marshal(resources)
	if err != nil {
		return any
	}
	return &anypb.Any{TypeUrl: any.GetTypeUrl(), Value: value}
}
