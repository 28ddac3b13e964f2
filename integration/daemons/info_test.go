package daemons

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// info runs `-info` with the options given and this PATH.
func info(t *testing.T, path, typeURL string, opts proto.Message) *types.RuntimeInfo {
	t.Helper()
	var input []byte
	if opts != nil {
		value, err := proto.Marshal(opts)
		if err != nil {
			t.Fatal(err)
		}
		if input, err = proto.Marshal(&anypb.Any{TypeUrl: typeURL, Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"), "-info")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = bytes.NewReader(input), &stdout, &stderr, []string{"PATH=" + path}
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var got types.RuntimeInfo
	if err := proto.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return &got
}

func TestInfoTellsOurVersionAndTheFeaturesOfRunc(t *testing.T) {
	tools, err := testenv.ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"), "-v").Output()
	if err != nil {
		t.Fatal(err)
	}
	runc := filepath.Join(tools, "runc")
	body := []byte("BinaryName = \"" + runc + "\"\nSystemdCgroup = true\n[policy]\nkubernetes = \"trust-env\"\n")
	for _, tc := range []struct {
		name, path, typeURL string
		opts                proto.Message
		features            bool
	}{
		{"without options", tools, "", nil, true},
		{"with runc's options", "/nonesuch", "containerd.runc.v1.Options", &options.Options{BinaryName: runc}, true},
		{"with a table", "/nonesuch", "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigBody: body}, true},
		{"with the table of containerd 1.6", "/nonesuch", "cri.runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigBody: body}, true},
		{"with a type and no more", tools, "runtimeoptions.v1.Options", &runtimeoptions.Options{TypeUrl: "runtimeoptions.v1.Options"}, true},
		{"where runc is missing", "/nonesuch", "", nil, false},
		{"where BinaryName is missing", tools, "containerd.runc.v1.Options", &options.Options{BinaryName: "/nonesuch"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := info(t, tc.path, tc.typeURL, tc.opts)
			if got.GetName() != "io.containerd.nvidia.v2" || got.GetVersion().GetVersion() == "" ||
				!strings.Contains(string(version), got.GetVersion().GetVersion()) {
				t.Errorf("name %q, version %v; -v says %s", got.GetName(), got.GetVersion(), version)
			}
			if (got.GetFeatures() != nil) != tc.features {
				t.Fatalf("features: %v", got.GetFeatures())
			}
			if !tc.features {
				return
			}
			// An Any of runtime-spec's features is JSON.
			var features struct {
				MountOptions []string `json:"mountOptions"`
				Linux        struct {
					MountExtensions struct {
						IDMap struct {
							Enabled bool `json:"enabled"`
						} `json:"idmap"`
					} `json:"mountExtensions"`
				} `json:"linux"`
			}
			if err := json.Unmarshal(got.GetFeatures().GetValue(), &features); err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(features.MountOptions, "rro") || !features.Linux.MountExtensions.IDMap.Enabled {
				t.Errorf("features: %s", got.GetFeatures().GetValue())
			}
		})
	}
}
