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
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
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
	Refusals             []state.Event
}

// pageDevice is a GPU or a MIG device. Memory is in MiB; Total is 0 if it is unknown.
type pageDevice struct {
	Name, Model, Error, Utilization string
	Sick                            string // its health, if it is not OK
	MIG, Partitioned                bool
	Holders                         []pageHolder
	Used, Total                     uint64
}

// pageHolder is a container that has a device. Used is in MiB, 0 if it is unknown.
type pageHolder struct {
	Name, Busy string
	Used       uint64
}

func (s *server) servePage(w http.ResponseWriter, _ *http.Request) {
	p := page{Version: version.Version, Style: template.CSS(pageCSS), Time: time.Now(), Refusals: s.follow()}
	p.Host, _ = os.Hostname()
	var err error
	if p.Status, err = s.readStatus(); err != nil {
		p.Error = err.Error()
	} else {
		p.Devices = pageDevices(p.Status)
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
func pageDevices(s *status.Status) (list []pageDevice) {
	add := func(d pageDevice, name string, ids []string, m *nvml.MemoryState) {
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
		add(d, strconv.Itoa(g.Index), g.Containers, g.Memory)
		for _, m := range g.MIG {
			name := fmt.Sprintf("%d:%d/%d", g.Index, m.GI, m.CI)
			add(pageDevice{MIG: true, Name: "MIG " + name, Model: m.Profile}, name, m.Containers, m.Memory)
		}
	}
	return list
}

// pageUse returns a container with what it uses of a device.
func pageUse(c status.Container, device string) pageHolder {
	h := pageHolder{Name: c.Label()}
	for _, u := range c.Uses {
		if u.Name == device && u.Memory != nil {
			h.Used = *u.Memory >> 20
		}
		if u.Name == device && u.Utilization != nil {
			h.Busy = strconv.FormatUint(uint64(*u.Utilization), 10)
		}
	}
	return h
}
