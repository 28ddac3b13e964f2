package serve

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// The JSON of nvidia-docker 1, with the fields for which this program has values. Memory is in MiB.
type dockerInfo struct {
	Version struct{ Driver, CUDA string }
	Devices []dockerDevice
}

type dockerDevice struct {
	UUID, Path, Model string
	PCI               struct{ BusID string }
	Memory            struct{ Global *uint64 }
}

type dockerStatus struct {
	Devices []dockerDeviceStatus
}

type dockerDeviceStatus struct {
	Utilization struct{ GPU *uint32 }
	Memory      struct{ GlobalUsed *uint64 }
	Processes   []dockerProcess
}

type dockerProcess struct {
	PID        int
	Name       string
	MemoryUsed *uint64
}

func mebibytes(v *uint64) *uint64 {
	if v == nil {
		return nil
	}
	m := *v >> 20
	return &m
}

func newDockerInfo(s *status.Status) (info dockerInfo) {
	info.Version.Driver, info.Version.CUDA = s.DriverVersion, s.CUDAVersion
	info.Devices = []dockerDevice{}
	for _, g := range s.GPUs {
		d := dockerDevice{UUID: g.UUID, Path: fmt.Sprintf("/dev/nvidia%d", g.Minor), Model: g.Model}
		d.PCI.BusID = g.PCI
		if g.Memory != nil {
			d.Memory.Global = mebibytes(g.Memory.Total)
		}
		info.Devices = append(info.Devices, d)
	}
	return info
}

func newDockerStatus(s *status.Status) dockerStatus {
	list := dockerStatus{Devices: []dockerDeviceStatus{}}
	for _, g := range s.GPUs {
		d := dockerDeviceStatus{Processes: []dockerProcess{}}
		if g.Utilization != nil {
			d.Utilization.GPU = g.Utilization.GPU
		}
		if g.Memory != nil {
			d.Memory.GlobalUsed = mebibytes(g.Memory.Used)
		}
		processes := g.Processes
		for _, m := range g.MIG {
			processes = append(processes, m.Processes...)
		}
		for _, p := range processes {
			d.Processes = append(d.Processes, dockerProcess{p.PID, p.Name, mebibytes(p.Memory)})
		}
		list.Devices = append(list.Devices, d)
	}
	return list
}

// handleNVIDIADocker adds the endpoints of nvidia-docker 1.
func (s *Server) handleNVIDIADocker(mux *http.ServeMux, prefix string) {
	handle := func(path string, answer func(w io.Writer, host *status.Status) error) {
		mux.HandleFunc("GET "+prefix+path, func(w http.ResponseWriter, _ *http.Request) {
			host, err := s.readStatus()
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			if strings.HasSuffix(path, "/json") {
				w.Header().Set("Content-Type", "application/json")
			}
			_ = answer(w, host)
		})
	}
	handle("/gpu/info", printInfo)
	handle("/gpu/info/json", func(w io.Writer, host *status.Status) error { return json.NewEncoder(w).Encode(newDockerInfo(host)) })
	handle("/gpu/status", printStatus)
	handle("/gpu/status/json", func(w io.Writer, host *status.Status) error { return json.NewEncoder(w).Encode(newDockerStatus(host)) })
	handle("/mesos/cli", printMesos)
	mux.HandleFunc("GET "+prefix+"/docker/cli", s.dockerCLI(func(w http.ResponseWriter, a *runargs.Args) error {
		_, err := io.WriteString(w, strings.Join(a.Args, " "))
		return err
	}))
	mux.HandleFunc("GET "+prefix+"/docker/cli/json", s.dockerCLI(func(w http.ResponseWriter, a *runargs.Args) error {
		w.Header().Set("Content-Type", "application/json")
		volumes, devices := []string{}, []string{}
		for _, f := range a.Files {
			volumes = append(volumes, f.Source+":"+f.Destination+":ro")
		}
		for _, d := range a.Devices {
			devices = append(devices, d.Source)
		}
		return json.NewEncoder(w).Encode(struct {
			VolumeDriver     string
			Volumes, Devices []string
		}{"", volumes, devices})
	}))
}

// dockerCLI answers for the GPUs of the parameter "dev", separated by "+" or ",", or for all. There
// is only one driver volume, so "vol" is ignored.
func (s *Server) dockerCLI(answer func(http.ResponseWriter, *runargs.Args) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		devices := strings.Join(strings.Fields(r.FormValue("dev")), ",")
		if devices == "" || devices == "*" {
			devices = "all"
		}
		s.asking.Lock() // one probe at a time, so that shims need not wait for theirs
		args, err := s.DockerArgs(devices)
		s.asking.Unlock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = answer(w, args)
	}
}

func printInfo(w io.Writer, host *status.Status) error {
	info := newDockerInfo(host)
	fmt.Fprintf(w, "Driver version:          %s\nSupported CUDA version:  %s\n", info.Version.Driver, info.Version.CUDA)
	for i, d := range info.Devices {
		fmt.Fprintf(w, "\nDevice #%d\n  Model:     %s\n  UUID:      %s\n  Path:      %s\n  PCI bus:   %s\n  Memory:    %s MiB\n",
			i, d.Model, d.UUID, d.Path, d.PCI.BusID, number(d.Memory.Global))
	}
	return nil
}

func printStatus(w io.Writer, host *status.Status) error {
	info := newDockerInfo(host)
	for i, d := range newDockerStatus(host).Devices {
		fmt.Fprintf(w, "Device #%d\n  Utilization:  %s %%\n  Memory:       %s / %s MiB\n",
			i, number(d.Utilization.GPU), number(d.Memory.GlobalUsed), number(info.Devices[i].Memory.Global))
		for _, p := range d.Processes {
			fmt.Fprintf(w, "  Process:      PID %d, %s, %s MiB\n", p.PID, p.Name, number(p.MemoryUsed))
		}
	}
	return nil
}

// number returns a number as text, "-" if it is unknown.
func number[T uint32 | uint64](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

func printMesos(w io.Writer, host *status.Status) error {
	info := newDockerInfo(host)
	var uuids []string
	for _, d := range info.Devices {
		uuids = append(uuids, d.UUID)
	}
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	if err := json.NewEncoder(z).Encode(info); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "--attributes=gpus:%s --resources=gpus:{%s}", base64.RawURLEncoding.EncodeToString(packed.Bytes()), strings.Join(uuids, ","))
	return err
}
