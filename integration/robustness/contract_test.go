package robustness

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// elsewhere are parts of examples that need another host: those of pods run under a kubelet
// (integration/kubernetes), those of CDI devices in TestBesideNVIDIAsHook.
var elsewhere = regexp.MustCompile("a pod|driver 580|a host with MIG|--device")

var (
	contractUUID = regexp.MustCompile("GPU-d66de8a2-[0-9a-f-]*")
	limitPart    = regexp.MustCompile(`(limit|request) (\d+) MiB`)
)

// Every row of the contract's table of GPU memory, under containerd.
func TestTheContractOfGPUMemory(t *testing.T) {
	page, err := os.ReadFile("../../docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## GPU memory\n")
	table, _, _ = strings.Cut(table, "\n## ")
	h := newLimitedHost(t, "dmem")
	config, err := os.ReadFile(h.Driver.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) < 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		for example := range strings.SplitSeq(contractUUID.ReplaceAllString(cells[1], h.Driver.GPUs[2].UUID), " or ") {
			if elsewhere.MatchString(example) {
				continue
			}
			ran++
			o, keys := parseExample(example)
			writeFile(t, h.Driver.ConfigPath, []byte(string(config)+keys), 0o644)
			h.checkExample(t, example, o, strings.TrimSuffix(strings.TrimSpace(cells[2]), " |"))
		}
	}
	if t.Logf("%d examples", ran); ran < 30 {
		t.Error("the table was not read")
	}
}

// parseExample returns the container of an example, and its keys of the configuration.
func parseExample(example string) (o testenv.RunOptions, config string) {
	o = simhost.Visible("0")
	for part := range strings.SplitSeq(example, "; ") {
		part = strings.Trim(part, "`")
		key, isKey := strings.CutPrefix(part, "policy.")
		section := "policy"
		if !isKey {
			key, isKey = strings.CutPrefix(part, "container.")
			section = "container"
		}
		switch {
		case isKey:
			config += "[" + section + "]\n" + key + "\n"
		case strings.HasPrefix(part, "io.containerd."):
			o.Annotations = append(o.Annotations, part)
		case part[0] >= '0' && part[0] <= '9':
			o.Env[0] = "NVIDIA_VISIBLE_DEVICES=" + part
		default:
			o.Env = append(o.Env, part)
		}
	}
	return o, config
}

// checkExample runs a container and compares its limits with what the table says.
func (h *host) checkExample(t *testing.T, example string, o testenv.RunOptions, says string) {
	t.Helper()
	if words, refused := strings.CutPrefix(says, "refused: "); refused {
		h.Refused(t, o, words)
		h.nothingLimited(t, example)
		return
	}
	var want []string
	for gpu := range strings.SplitSeq(says, "; ") {
		amounts := map[string]string{"limit": "none", "request": "0"}
		for _, m := range limitPart.FindAllStringSubmatch(gpu, -1) {
			amounts[m[1]] = m[2]
		}
		if text := fmt.Sprint(amounts["request"], " ", amounts["limit"]); text != "0 none" {
			want = append(want, text)
		}
	}
	id := h.Start(t, o)
	if own, _ := h.limits(t, id); !slices.Equal(own, want) {
		t.Errorf("%s: %q, want %q", example, own, want)
	}
	h.Gone(t, id)
	h.nothingLimited(t, example)
}
