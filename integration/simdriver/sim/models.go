package sim

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var h200 = Model{Name: "NVIDIA H200", Brand: "nvidia", Arch: "9.0"}

// brands are NVML's numbers (nvmlBrandType_t) by the names that requirements use.
var brands = map[string]int{
	"unknown": 0, "quadro": 1, "tesla": 2, "nvs": 3, "grid": 4, "geforce": 5, "titan": 6, "vapps": 7, "vpc": 8, "vcs": 9, "vws": 10,
	"cloudgaming": 11, "quadrortx": 12, "nvidiartx": 13, "nvidia": 14, "geforcertx": 15, "titanrtx": 16,
}

// shortVersion is that of CUDA and of compute capabilities.
var shortVersion = regexp.MustCompile(`^[0-9]{1,2}\.[0-9]$`)

// setModels gives every GPU its model.
func (d *Driver) setModels(models map[int]Model) error {
	for i := range models {
		if i < 0 || i >= len(d.GPUs) {
			return fmt.Errorf("model of GPU %d: there are %d", i, len(d.GPUs))
		}
	}
	for i := range d.GPUs {
		m := models[i]
		m = Model{Name: cmp.Or(m.Name, h200.Name), Brand: cmp.Or(m.Brand, h200.Brand), Arch: cmp.Or(m.Arch, h200.Arch)}
		if _, ok := brands[m.Brand]; !ok {
			return fmt.Errorf("brand %q of GPU %d: known are %s", m.Brand, i, strings.Join(slices.Sorted(maps.Keys(brands)), ", "))
		}
		if !shortVersion.MatchString(m.Arch) {
			return fmt.Errorf("compute capability %q of GPU %d is not like 9.0", m.Arch, i)
		}
		d.GPUs[i].Model = m
	}
	return nil
}
