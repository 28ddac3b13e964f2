package shim

import (
	"context"
	"encoding/json"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Update changes the container's resources except devices. The kubelet sends the device rules
// that containerd knows, without those that Create added; runc ignores them (update.go,
// SkipDevices), but crun would remove the GPUs.
func (s *Service) Update(ctx context.Context, r *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
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
	delete(resources, "devices")
	value, err := json.Marshal(resources)
	if err != nil {
		return any
	}
	return &anypb.Any{TypeUrl: any.GetTypeUrl(), Value: value}
}
