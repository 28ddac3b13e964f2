package config

// Values of NVIDIA_DRIVER_CAPABILITIES.
const (
	Compute  = "compute"
	Compat32 = "compat32"
	Graphics = "graphics"
	Utility  = "utility"
	Video    = "video"
	Display  = "display"
	NGX      = "ngx"
)

var capabilities = []string{Compute, Compat32, Graphics, Utility, Video, Display, NGX}
