// Package hostinfo shows what this host offers to containers: the driver, its files, the GPUs and
// MIG devices, and what is wrong with them.
//
//	info, err := hostinfo.Read(cfg.Host, ask)
//	info.Print(term.New(os.Stdout))
package hostinfo
