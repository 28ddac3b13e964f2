// Package host describes this host: its GPUs and MIG devices, their device nodes, and the files of
// the driver by capability.
//
//	h, err := host.Discover(cfg.Host)  // for every container
//	set, err := h.Select(ids, facts)   // which devices
//	files, err := h.DriverFiles()      // searched only if what is kept is no longer Fresh
//	nodes, err := h.Nodes(set, caps, files)
//
// A Host is a plain value, complete when it is made. Discover recognises the platform; the methods
// are the same on every platform. Below it are packages device (GPUs, MIG devices, nodes), driver
// (the search for driver files), and one for each platform that has rules of its own: wsl and
// tegra.
package host
