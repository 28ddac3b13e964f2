package device

import (
	"fmt"
	"path/filepath"
)

// dxg is the one node of WSL2, below /dev. It is a misc device with a dynamic minor
// number and that name (dxg_drv_init in drivers/hv/dxgkrnl/dxgmodule.c of Microsoft's
// kernel).
const dxg = "dxg"

var dxgKind = otherKind{prefix: dxg, drivers: named("misc"), minor: func(_ int, misc map[string]uint32) (uint32, bool) {
	n, ok := misc[dxg]
	return n, ok
}}

// wslNodes are those of a container under WSL2: /dev/dxg, with a GPU or without,
// since nothing below it can be told apart.
func (inv *Inventory) wslNodes() ([]Node, error) {
	devices, err := readBounded(filepath.Join(inv.Roots.Proc, "devices"))
	if err != nil {
		return nil, fmt.Errorf("read device majors: %w", err)
	}
	misc, err := readBounded(filepath.Join(inv.Roots.Proc, "misc"))
	if err != nil {
		return nil, fmt.Errorf("read device minors: %w", err)
	}
	minors := parseMajors(append([]byte("Character devices:\n"), misc...)) // "125 dxg", like majors
	node, err := dxgKind.verify(inv.Roots.Dev, 0, majorsOf(string(devices), dxgKind.drivers), minors)
	if err != nil {
		return nil, err
	}
	return []Node{node}, nil
}
