package shim

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"testing"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"
)

// One set of messages may serve both versions only as long as they agree in every
// field's number, type and label, and in every method.
func TestTheMessagesOfBothTaskVersionsAreTheSame(t *testing.T) {
	describe := func(file protoreflect.FileDescriptor) proto.Message {
		d := protodesc.ToFileDescriptorProto(file)
		d.Name, d.Options, d.Package = nil, nil, nil
		for _, m := range d.MessageType {
			for _, f := range m.Field {
				f.TypeName = trim(f.TypeName, string(file.Package()))
			}
		}
		for _, s := range d.Service {
			for _, m := range s.Method {
				m.InputType, m.OutputType = trim(m.InputType, string(file.Package())), trim(m.OutputType, string(file.Package()))
			}
		}
		return d
	}
	v2, v3 := describe(taskv2.File_runtime_task_v2_shim_proto), describe(taskapi.File_runtime_task_v3_shim_proto)
	if !proto.Equal(v2, v3) {
		t.Errorf("version 2:\n%v\nversion 3:\n%v", v2, v3)
	}
}

func trim(name *string, pkg string) *string {
	if name != nil && len(*name) > len(pkg)+1 && (*name)[1:len(pkg)+1] == pkg {
		return proto.String((*name)[len(pkg)+1:])
	}
	return name
}

// taskService notes which method was called and with which container.
type taskService struct {
	taskapi.TTRPCTaskService
	called string
}

func (s *taskService) State(_ context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	s.called = "State " + r.ID + " " + r.ExecID
	return &taskapi.StateResponse{ID: r.ID, Bundle: "/b", Pid: 7, ExitStatus: 3, ExecID: r.ExecID}, nil
}

func (s *taskService) Create(_ context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	s.called = "Create " + r.ID
	return &taskapi.CreateTaskResponse{Pid: 7}, nil
}

func (s *taskService) Start(_ context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	s.called = "Start " + r.ID
	return &taskapi.StartResponse{}, nil
}

func (s *taskService) Delete(_ context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	s.called = "Delete " + r.ID
	return &taskapi.DeleteResponse{}, nil
}

func (s *taskService) Pids(_ context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	s.called = "Pids " + r.ID
	return &taskapi.PidsResponse{}, nil
}

func (s *taskService) Pause(_ context.Context, r *taskapi.PauseRequest) (*emptypb.Empty, error) {
	s.called = "Pause " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) Resume(_ context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	s.called = "Resume " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) Checkpoint(_ context.Context, r *taskapi.CheckpointTaskRequest) (*emptypb.Empty, error) {
	s.called = "Checkpoint " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) Kill(_ context.Context, r *taskapi.KillRequest) (*emptypb.Empty, error) {
	s.called = "Kill " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) Exec(_ context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	s.called = "Exec " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) ResizePty(_ context.Context, r *taskapi.ResizePtyRequest) (*emptypb.Empty, error) {
	s.called = "ResizePty " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) CloseIO(_ context.Context, r *taskapi.CloseIORequest) (*emptypb.Empty, error) {
	s.called = "CloseIO " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) Update(_ context.Context, r *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
	s.called = "Update " + r.ID
	return &emptypb.Empty{}, nil
}

func (s *taskService) Wait(_ context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	s.called = "Wait " + r.ID
	return &taskapi.WaitResponse{}, nil
}

func (s *taskService) Stats(_ context.Context, r *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	s.called = "Stats " + r.ID
	return &taskapi.StatsResponse{}, nil
}

func (s *taskService) Connect(_ context.Context, r *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	s.called = "Connect " + r.ID
	return &taskapi.ConnectResponse{}, nil
}

func (s *taskService) Shutdown(_ context.Context, r *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.called = "Shutdown " + r.ID
	return &emptypb.Empty{}, nil
}

// Every method that a client of version 2 has reaches the method of the same name.
func TestEveryMethodOfTaskVersion2IsServed(t *testing.T) {
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	service := &taskService{}
	registerV2(server, service)
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(context.Background(), listener) }()
	defer server.Close()
	conn, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(conn)
	defer c.Close()
	client := taskv2.NewTTRPCTaskClient(c)

	methods := reflect.TypeFor[taskv2.TTRPCTaskService]()
	for n := range methods.NumMethod() {
		method := methods.Method(n)
		request := reflect.New(method.Type.In(1).Elem())
		request.Elem().FieldByName("ID").SetString("c1")
		want := method.Name + " c1"
		if method.Name == "State" {
			request.Elem().FieldByName("ExecID").SetString("e1")
			want += " e1"
		}
		out := reflect.ValueOf(client).MethodByName(method.Name).Call([]reflect.Value{reflect.ValueOf(context.Background()), request})
		if err, ok := out[1].Interface().(error); ok && err != nil {
			t.Errorf("%s: %v", method.Name, err)
		} else if service.called != want {
			t.Errorf("%s called %q, want %q", method.Name, service.called, want)
		}
		if state, ok := out[0].Interface().(*taskv2.StateResponse); ok {
			if state.ID != "c1" || state.Bundle != "/b" || state.Pid != 7 || state.ExitStatus != 3 || state.ExecID != "e1" {
				t.Errorf("State: got %v", state)
			}
		}
	}
}
