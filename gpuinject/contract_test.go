package gpuinject

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// The tables of docs/contract.md are those of this test: every row is a case, run
// through the shim's own steps, and what it is seen to do is the row's cell. With
// -contract the tables of the page are written again; the text around them is its own.
var writeContract = flag.Bool("contract", false, "write the tables of docs/contract.md")

const contractPage = "../docs/contract.md"

// contractSection is one table of the page.
type contractSection struct {
	title string
	// host is another one than that of most tables: with MIG devices.
	host *migHost
	// env is part of every case and is not shown.
	env []string
	// show says what of an outcome the table is about; GPUs where it is nil.
	show  func(Plan) string
	cases []contractCase
}

// contractCase is one row.
type contractCase struct {
	name string
	// What is asked, and shown as the example.
	env         []string
	mounts      []string // of /dev/null, below the directory of device-list mounts
	annotations []string
	with        string // what spec and config make of it, in words
	spec        func(*specs.Spec)
	config      func(*config.Config)
	host        *migHost          // another one than the table's
	image       func(root string) // makes the image, which is empty otherwise
	// here is what happens: the outcome as it is rendered, or "refused: " and a part of
	// the message.
	here string
	// jit and legacy are NVIDIA's default and legacy mode; empty where it is not known.
	jit, legacy string
}

// same is the word for NVIDIA's cells.
const same = "same"

func contract(t *testing.T) []contractSection {
	t.Helper()
	return slices.Concat(deviceContract(), migContract(t), tegraContract(t), requirementContract(), otherContract(t), policyContract(), askContract(t))
}

func TestContract(t *testing.T) {
	for _, s := range contract(t) {
		s.run(t)
	}
}

// run runs the cases of a table, which need not be one of the page.
func (s contractSection) run(t *testing.T) {
	cfg := hostConfig(t)
	t.Run(s.title, func(t *testing.T) {
		for _, tc := range s.cases {
			t.Run(tc.name, func(t *testing.T) {
				c, s := *cfg, s
				if tc.host != nil {
					s.host = tc.host
				}
				if s.host != nil {
					c = *s.host.cfg
				}
				if tc.config != nil {
					tc.config(&c)
				}
				if got := s.outcome(t, tc, &c); got != tc.here {
					t.Errorf("%s: %s, want %s", example(tc), got, tc.here)
				}
			})
		}
	})
}

// outcome takes the container of a case through all steps that change nothing, and
// says what comes of it.
func (s contractSection) outcome(t *testing.T, tc contractCase, cfg *config.Config) string {
	c, err := ExamineSpec(s.container(tc), loading(cfg))
	var plan Plan
	if err == nil && c.Asks {
		ask := factsFrom(func() (device.Facts, error) { return someFacts(), nil })
		if s.host != nil {
			ask = s.host.ask()
		}
		root := t.TempDir()
		if tc.image != nil {
			tc.image(root)
		}
		plan, err = resolveIn(t, c, root, ask)
	}
	var refused *Error
	switch {
	case errors.As(err, &refused):
		if text, ok := strings.CutPrefix(tc.here, "refused: "); ok && strings.Contains(err.Error(), text) {
			return tc.here
		}
		return "refused: " + err.Error()
	case err != nil:
		t.Fatal(err)
	case !c.Asks:
		return "left alone"
	case !plan.GPU:
		return "starts without a GPU"
	case s.show != nil:
		return s.show(plan)
	}
	return showGPUs(plan)
}

func (s contractSection) container(tc contractCase) *specs.Spec {
	spec := newSpec(slices.Concat(s.env, tc.env)...)
	for _, id := range tc.mounts {
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: request.DeviceListDir + "/" + id, Type: "bind"})
	}
	for _, a := range tc.annotations {
		key, value, _ := strings.Cut(a, "=")
		spec.Annotations[key] = value
	}
	if tc.spec != nil {
		tc.spec(spec)
	}
	return spec
}

func showGPUs(p Plan) string {
	var list []string
	for _, g := range p.GPUs {
		list = append(list, strconv.Itoa(g.Index))
	}
	switch len(list) {
	case 0:
		return "the driver without a GPU"
	case len(simulated.GPUs):
		return "every GPU"
	case 1:
		return "GPU " + list[0]
	}
	return "GPUs " + strings.Join(list, ", ")
}

func showCapabilities(p Plan) string {
	if len(p.Capabilities) == 7 {
		return "all seven"
	}
	return strings.Join(p.Capabilities, ", ")
}

// showNodes shows what nodes come besides those of GPUs.
func showNodes(p Plan) string {
	var list []string
	for _, d := range p.Devices {
		name := strings.TrimPrefix(d.Path, "/dev/")
		if d.Path != "/dev/nvidiactl" && !slices.ContainsFunc(p.GPUs, func(g PlanGPU) bool { return name == fmt.Sprintf("nvidia%d", g.Minor) }) {
			list = append(list, "`"+d.Path+"`")
		}
	}
	if len(list) == 0 {
		return "no further node"
	}
	return strings.Join(list, ", ")
}

func showRequirements(p Plan) string {
	for _, n := range p.Notes {
		if strings.Contains(n, "not checked") {
			return "starts, nothing is checked"
		}
	}
	if len(p.Requirements) == 0 {
		return "starts, nothing is required"
	}
	return "starts"
}

// example is what a case asks, as the page shows it.
func example(tc contractCase) string {
	var list []string
	add := func(s string) { list = append(list, "`"+s+"`") }
	for _, e := range tc.env {
		add(e)
	}
	for _, m := range tc.mounts {
		add(request.DeviceListDir + "/" + m)
	}
	for _, a := range tc.annotations {
		add(a)
	}
	if tc.with != "" {
		list = append(list, tc.with)
	}
	return strings.Join(list, "; ")
}

func (s contractSection) table() []string {
	lines := []string{"| " + s.title + " | For example | Here | NVIDIA's default mode | NVIDIA's legacy mode |", "|---|---|---|---|---|"}
	for _, tc := range s.cases {
		line := "|"
		for _, cell := range []string{tc.name, example(tc), tc.here, tc.jit, tc.legacy} {
			if cell == "" {
				line += " |"
			} else {
				line += " " + cell + " |"
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// The page has these tables, line by line, and no other of their form.
func TestContractIsThePage(t *testing.T) {
	data, err := os.ReadFile(contractPage)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string][]string{}
	names := map[string]bool{}
	for _, s := range contract(t) {
		tables[s.title] = s.table()
		for _, tc := range s.cases {
			if names[s.title+tc.name] {
				t.Errorf("%s: %q is there twice", s.title, tc.name)
			}
			names[s.title+tc.name] = true
		}
	}
	var page []string
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		title, ok := strings.CutSuffix(lines[i], " | For example | Here | NVIDIA's default mode | NVIDIA's legacy mode |")
		if !ok {
			page = append(page, lines[i])
			continue
		}
		title = strings.TrimPrefix(title, "| ")
		end := i
		for end < len(lines) && strings.HasPrefix(lines[end], "|") {
			end++
		}
		want := tables[title]
		if got := lines[i:end]; !*writeContract && !slices.Equal(got, want) {
			for n := range max(len(got), len(want)) {
				if n >= len(got) || n >= len(want) || got[n] != want[n] {
					t.Errorf("docs/contract.md, table %q, line %d: go test ./gpuinject -contract writes it again\n%s", title, i+n+1, strings.Join(want[min(n, len(want)):min(n+1, len(want))], ""))
					break
				}
			}
		}
		delete(tables, title)
		page = append(page, want...)
		i = end - 1
	}
	for title := range tables {
		t.Errorf("docs/contract.md has no table %q", title)
	}
	if *writeContract {
		if err := os.WriteFile(contractPage, []byte(strings.Join(page, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
