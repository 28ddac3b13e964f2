package config

// Kinds of devices besides GPUs that a container can ask for.
const (
	IMEX     = "imex"
	GDS      = "gds"
	GDRCopy  = "gdrcopy"
	MOFED    = "mofed"
	NVSwitch = "nvswitch"
)

// Classes are all of them.
var Classes = []string{IMEX, GDS, GDRCopy, MOFED, NVSwitch}
