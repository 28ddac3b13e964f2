package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
)

// registerV2 serves the Task service under its name in version 2, for daemons before 2.0 and for
// later ones with a shim that was started as version 2. The messages of both versions differ
// only in the package of their names, which is not on the wire (a test compares them).
func registerV2(server *ttrpc.Server, s taskapi.TTRPCTaskService) {
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State":      method(s.State),
		"Create":     method(s.Create),
		"Start":      method(s.Start),
		"Delete":     method(s.Delete),
		"Pids":       method(s.Pids),
		"Pause":      method(s.Pause),
		"Resume":     method(s.Resume),
		"Checkpoint": method(s.Checkpoint),
		"Kill":       method(s.Kill),
		"Exec":       method(s.Exec),
		"ResizePty":  method(s.ResizePty),
		"CloseIO":    method(s.CloseIO),
		"Update":     method(s.Update),
		"Wait":       method(s.Wait),
		"Stats":      method(s.Stats),
		"Connect":    method(s.Connect),
		"Shutdown":   method(s.Shutdown),
	}})
}

// method returns a method of the service in the form that ttrpc registers.
func method[Request any, Response proto.Message, Message interface {
	*Request
	proto.Message
}](call func(context.Context, Message) (Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		var request Message = new(Request)
		if err := unmarshal(request); err != nil {
			return nil, err
		}
		return call(ctx, request)
	}
}
