package shim

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"
)

// One set of messages can serve both versions only if they agree in every field's number, type
// and label, and in every method.
func TestTheMessagesOfBothTaskVersionsAreTheSame(t *testing.T) {
	describe := func(file protoreflect.FileDescriptor) string {
		d := protodesc.ToFileDescriptorProto(file)
		d.Name, d.Options = nil, nil
		// The name of the package stands in every reference to a message.
		return strings.ReplaceAll(string(marshal(t, d)), "containerd.task.v2", "containerd.task.v3")
	}
	v2, v3 := describe(taskv2.File_runtime_task_v2_shim_proto), describe(taskapi.File_runtime_task_v3_shim_proto)
	if v2 != v3 {
		t.Errorf("version 2:\n%q\nversion 3:\n%q", v2, v3)
	}
}

// recordingService serves version 3 of the Task API. Every method records its name and request.
func recordingService(t *testing.T, called *string) taskapi.TTRPCTaskService {
	t.Helper()
	desc := &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{}}
	methods := reflect.TypeFor[taskapi.TTRPCTaskService]()
	for n := range methods.NumMethod() {
		name := methods.Method(n).Name
		desc.Methods[name] = func(_ context.Context, unmarshal func(any) error) (any, error) {
			// The id is field 1 of every request.
			var r taskapi.StateRequest
			err := unmarshal(&r)
			*called = name + " " + r.ID
			if name != "State" {
				return &emptypb.Empty{}, err
			}
			return &taskapi.StateResponse{ID: r.ID, Bundle: "/b", Pid: 7, ExitStatus: 3, ExecID: r.ExecID}, err
		}
	}
	return taskapi.NewTTRPCTaskClient(serve(t, func(server *ttrpc.Server) {
		server.RegisterService("containerd.task.v3.Task", desc)
	}))
}

// serve starts a server and returns a client of it.
func serve(t *testing.T, register func(*ttrpc.Server)) *ttrpc.Client {
	t.Helper()
	server, err := ttrpc.NewServer()
	check(t, err)
	register(server)
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	check(t, err)
	go func() { _ = server.Serve(context.Background(), listener) }()
	t.Cleanup(func() { server.Close() })
	conn, err := net.Dial("unix", listener.Addr().String())
	check(t, err)
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { client.Close() })
	return client
}

// Every method that a client of version 2 has reaches the method of the same name.
func TestEveryMethodOfTaskVersion2IsServed(t *testing.T) {
	var called string
	service := recordingService(t, &called)
	client := taskv2.NewTTRPCTaskClient(serve(t, func(server *ttrpc.Server) { registerV2(server, service) }))
	methods := reflect.TypeFor[taskv2.TTRPCTaskService]()
	for n := range methods.NumMethod() {
		method := methods.Method(n)
		request := reflect.New(method.Type.In(1).Elem())
		request.Elem().FieldByName("ID").SetString("c1")
		out := reflect.ValueOf(client).MethodByName(method.Name).Call([]reflect.Value{reflect.ValueOf(t.Context()), request})
		if err, ok := out[1].Interface().(error); ok && err != nil {
			t.Errorf("%s: %v", method.Name, err)
		} else if want := method.Name + " c1"; called != want {
			t.Errorf("%s called %q, want %q", method.Name, called, want)
		}
	}
	state, err := client.State(t.Context(), &taskv2.StateRequest{ID: "c1", ExecID: "e1"})
	if err != nil || state.ID != "c1" || state.Bundle != "/b" || state.Pid != 7 || state.ExitStatus != 3 || state.ExecID != "e1" {
		t.Errorf("State: got %v, %v", state, err)
	}
}
