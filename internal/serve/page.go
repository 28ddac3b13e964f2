package serve

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string

	pageTemplate = template.Must(template.New("page").Parse(pageHTML))
	styleSum     = sha256.Sum256([]byte(pageCSS))
	// The browser loads nothing and runs no script.
	contentPolicy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(styleSum[:]) + "'"
)

type page struct {
	Host, Version, Error string
	Style                template.CSS
	Time                 time.Time
	Status               *status.Status
	Devices              []pageDevice
	Suspended            []pageSuspended
	Idle                 []status.Container
	Refusals             []pageRefusal
}

// pageRefusal is the latest of Count refusals that differ in nothing but their time.
type pageRefusal struct {
	state.Event
	Count int
}

// pageSuspended is a container that has given its GPUs back. Memory is in MiB, 0 if it is unknown.
type pageSuspended struct {
	Name   string
	Memory uint64
	Since  time.Time
	Idle   bool // the reason
}

// pageDevice is a GPU or a MIG device. Memory is in MiB; Total is 0 if it is unknown.
type pageDevice struct {
	Name, Model, Error, Utilization string
	Sick                            string // its health, if it is not OK
	MIG, Partitioned                bool
	Holders                         []pageHolder
	Used, Total                     uint64
	// Sensors is a line of text. Lines of the last hour are points of SVG.
	Sensors              string
	MemoryLine, BusyLine string
	Processes            []string
}

// pageHolder is a container that has a device. Used is in MiB, 0 if it is unknown, and Limit 0 if it has
// none. From says where Used is from.
type pageHolder struct {
	Name, Busy, From string
	Used, Limit      uint64
	// Request is reserved for it, 0 if that is nothing or the limit.
	Request uint64
}

func (s *Server) servePage(w http.ResponseWriter, _ *http.Request) {
	p := page{Version: version.Version, Style: template.CSS(pageCSS), Time: time.Now(), Refusals: grouped(s.follow())}
	p.Host, _ = os.Hostname()
	var err error
	if p.Status, err = s.readStatus(); err != nil {
		p.Error = err.Error()
	} else {
		p.Devices = s.pageDevices(p.Status, p.Time)
		p.Suspended = pageSuspensions(p.Status)
		p.Idle = slices.DeleteFunc(slices.Clone(p.Status.Containers), func(c status.Container) bool { return c.Idle == nil || c.Suspended != nil })
	}
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, p); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Security-Policy", contentPolicy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes())
}

// pageDevices lists the GPUs, each with its MIG devices behind it.
func (srv *Server) pageDevices(s *status.Status, now time.Time) (list []pageDevice) {
	add := func(d pageDevice, name string, use status.Use) {
		ids, m := use.Containers, use.Memory
		for _, p := range use.Processes {
			d.Processes = append(d.Processes, pageProcess(s, p))
		}
		for _, c := range s.Containers {
			if slices.Contains(ids, c.ID) {
				d.Holders = append(d.Holders, pageUse(c, name))
			}
		}
		if m != nil && m.Used != nil && m.Total != nil {
			d.Used, d.Total = *m.Used>>20, *m.Total>>20
		}
		list = append(list, d)
	}
	for _, g := range s.GPUs {
		d := pageDevice{Name: fmt.Sprintf("GPU %d", g.Index), Model: g.Model, Error: g.Error, Partitioned: len(g.MIG) > 0}
		if g.Utilization != nil && g.Utilization.GPU != nil {
			d.Utilization = strconv.FormatUint(uint64(*g.Utilization.GPU), 10)
		}
		if g.Health.IsSick() {
			d.Sick = g.Health.String()
		}
		d.Sensors = sensors(g)
		d.MemoryLine = srv.history.line(g.PCI, now, func(p sample) float64 { return p.memory })
		d.BusyLine = srv.history.line(g.PCI, now, func(p sample) float64 { return p.busy })
		add(d, strconv.Itoa(g.Index), g.Use)
		for _, m := range g.MIG {
			name := fmt.Sprintf("%d:%d/%d", g.Index, m.GI, m.CI)
			add(pageDevice{MIG: true, Name: "MIG " + name, Model: m.Profile}, name, m.Use)
		}
	}
	return list
}

// pageUse returns a container with what it uses of a device.
func pageUse(c status.Container, device string) pageHolder {
	h := pageHolder{Name: c.Label()}
	for _, u := range c.Uses {
		if u.Name != device {
			continue
		}
		h.From, h.Limit = u.From, u.Limit>>20
		if u.Request != u.Limit {
			h.Request = u.Request >> 20
		}
		if u.Memory != nil {
			h.Used = *u.Memory >> 20
		}
		if u.Utilization != nil {
			h.Busy = strconv.FormatUint(uint64(*u.Utilization), 10)
		}
	}
	return h
}

// pageProcess returns a process in one line.
func pageProcess(s *status.Status, p status.Process) string {
	words := []string{p.Name, fmt.Sprintf("(%d)", p.PID)}
	if p.User != "" {
		words = append(words, "of user "+p.User)
	}
	for _, c := range s.Containers {
		if c.ID == p.Container {
			words = append(words, "in "+c.Label())
		}
	}
	if p.Memory != nil {
		words = append(words, fmt.Sprintf("%d MiB", *p.Memory>>20))
	}
	if p.Utilization != nil {
		words = append(words, fmt.Sprintf("busy %d %%", *p.Utilization))
	}
	return strings.Join(words, " ")
}

// sensors returns what a GPU reports of itself in one line.
func sensors(g status.GPU) string {
	if g.Sensors == nil || g.Sensors.Temperature == nil && g.Sensors.Power == nil {
		return ""
	}
	return fmt.Sprintf("%s, %s, ECC errors: %s, last Xid: %s", g.Temperature(), g.Power(), g.ECC(), g.LastXid())
}

func pageSuspensions(s *status.Status) (list []pageSuspended) {
	for _, c := range s.Containers {
		if c.Suspended != nil {
			list = append(list, pageSuspended{c.Label(), c.SuspendedMemory >> 20, *c.Suspended, c.Idle != nil && c.Idle.Suspended})
		}
	}
	return list
}

// grouped returns each refusal once, in the place of its latest.
func grouped(refusals []state.Event) (list []pageRefusal) {
	for _, e := range refusals {
		i := slices.IndexFunc(list, func(r pageRefusal) bool { return r.Who == e.Who && r.Class == e.Class && r.Reason == e.Reason })
		if i >= 0 {
			list[i].Count++
		} else {
			list = append(list, pageRefusal{e, 1})
		}
	}
	return list
}
