package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRunArgsAreThoseOfThePlan(t *testing.T) {
	d := simulate(t)
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			var r runArgs
			decode(t, fine(t, "--config", d.ConfigPath, "--json", "run-args", "--for", engine, "--devices", "1", "--capabilities", "utility,graphics"), &r)
			if len(r.GPUs) != 1 || r.GPUs[0].UUID != d.GPUs[1].UUID || len(r.Groups) == 0 || len(r.Limits) < 4 {
				t.Errorf("%+v", r)
			}
			all := strings.Join(r.Args, "\n")
			for i, g := range d.GPUs {
				if has := strings.Contains(all, filepath.Join(d.DevRoot, "dev/nvidia")+string(rune('0'+g.Minor))); has != (i == 1) {
					t.Errorf("GPU %d: %v", i, has)
				}
			}
			if strings.Contains(all, "libcuda.so") || !strings.Contains(all, "/usr/local/nvidia/lib64/libnvidia-ml.so.1") || !strings.Contains(all, "/usr/bin/nvidia-smi") {
				t.Errorf("not the files of utility and graphics:\n%s", all)
			}
			for _, f := range r.Files {
				if st, err := os.Lstat(f.Source); err != nil || strings.HasPrefix(f.Source, d.StateDir) || st.Mode()&os.ModeSymlink != 0 {
					t.Errorf("%+v: %v", f, err)
				}
			}
			// The same words for a shell, whatever is in them.
			_, text, notes := ctl(t, "--config", d.ConfigPath, "run-args", "--for", engine, "-e", "NVIDIA_VISIBLE_DEVICES=1", "--capabilities", "utility,graphics")
			words, err := exec.Command("/bin/sh", "-c", "printf '%s\\n' "+strings.ReplaceAll(strings.TrimSpace(text), "\n", " ")).Output()
			if err != nil || strings.TrimSpace(string(words)) != all || !strings.Contains(notes, "limit: /proc/driver/nvidia is not masked") {
				t.Errorf("%v %s\n%s\nwant\n%s", err, notes, words, all)
			}
			if split := strings.Fields(text); !slices.Equal(split, r.Args) {
				t.Errorf("a command substitution gives %q", split)
			}
		})
	}
	if code, _, errs := ctl(t, "--config", d.ConfigPath, "run-args", "--for", "ctr", "--devices", "9"); code != 1 || !strings.Contains(errs, "unknown GPU") {
		t.Errorf("an unknown GPU: status %d, %s", code, errs)
	}
}

func TestShellQuote(t *testing.T) {
	for _, s := range []string{"", "plain", "a b", "it's", "$(x)", "`x`", "a\nb", "*", "~", "\\", "-x=\"y\"", "ü"} {
		out, err := exec.Command("/bin/sh", "-c", "printf %s "+shellQuote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q became %q: %v", s, out, err)
		}
	}
}

// What Docker's own client makes of the flags, asked by a daemon that only listens.
func TestDockersClientUnderstandsTheFlags(t *testing.T) {
	docker, err := exec.LookPath("docker")
	if err != nil {
		t.Skipf("Docker's client is missing: install the package docker.io: %v", err)
	}
	d := simulate(t)
	// A path that a unix socket may have.
	dir, err := os.MkdirTemp("", "docker")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	type device struct{ PathOnHost, PathInContainer, CgroupPermissions string }
	var got struct {
		Env        []string
		HostConfig struct {
			Binds    []string
			GroupAdd []string
			Devices  []device
		}
	}
	var decodeErr error
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Api-Version", "1.47")
		w.Header().Set("Ostype", "linux")
		if strings.HasSuffix(q.URL.Path, "/containers/create") {
			decodeErr = json.NewDecoder(q.Body).Decode(&got)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"Id": "made", "Warnings": []}`))
		}
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()

	var r runArgs
	decode(t, fine(t, "--config", d.ConfigPath, "--json", "run-args", "--for", "docker", "--devices", "2", "--capabilities", "graphics"), &r)
	cmd := exec.Command(docker, append(append([]string{"create"}, r.Args...), "image")...)
	cmd.Env = []string{"DOCKER_HOST=unix://" + socket, "HOME=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "made" || decodeErr != nil {
		t.Fatalf("%v %v: %s", err, decodeErr, out)
	}
	var devices []device
	for _, n := range r.Devices {
		devices = append(devices, device{n.Source, n.Destination, "rw"})
	}
	var binds []string
	for _, f := range r.Files {
		binds = append(binds, f.Source+":"+f.Destination+":ro")
	}
	// The client has the binds and the variables in no order.
	for _, list := range [][]string{binds, got.HostConfig.Binds, got.Env, r.Env} {
		slices.Sort(list)
	}
	if !slices.Equal(got.HostConfig.Devices, devices) || !slices.Equal(got.HostConfig.Binds, binds) || len(got.HostConfig.GroupAdd) != len(r.Groups) || !slices.Equal(got.Env, r.Env) {
		t.Errorf("the daemon was asked for\n%+v\nwant\n%+v", got, r)
	}
}
