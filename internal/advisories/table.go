package advisories

// Advisory is a published vulnerability, or a defect that matters as much.
type Advisory struct {
	// Component is one of the constants, as are the classes.
	Component string
	// ID is a CVE, or another name that its source uses.
	ID    string
	Class string
	// Effect says what can happen, in a clause; empty if the source does not say.
	Effect string
	// Since is the first affected version; "" if all before the fix are.
	Since string
	// Fixed has the first fixed version of each release line, in ascending order. Lines after the
	// last one are fixed, lines without an entry are not. Without any entry no fix is known.
	Fixed []string
	// Kernels are the first affected and the first fixed version of the kernel; empty if the kernel
	// does not matter.
	Kernels []string
	// Source is the address of the advisory.
	Source string
}

// Components, by the names that their own advisories use.
const (
	Containerd = "containerd"
	Runc       = "runc"
	Crun       = "crun"
	CRIU       = "CRIU"
	Driver     = "NVIDIA driver"
)

// Classes of advisories.
const (
	Escape     = "escape"     // from a container or an image to the host, or to other containers
	Restore    = "restore"    // an escape, for hosts that restore containers from checkpoints
	Denial     = "denial"     // a daemon, its memory or the disk
	Disclosure = "disclosure" // of credentials or memory
	Crash      = "crash"      // without an attacker
	Unknown    = "unknown"    // the source had no details on the day of Reviewed
)

// Reviewed is the day on which the sources were last read.
const Reviewed = "2026-11-28"

const (
	containerdSource = "https://github.com/containerd/containerd/security/advisories/"
	runcSource       = "https://github.com/opencontainers/runc/security/advisories/"
	runcChanges      = "https://github.com/opencontainers/runc/blob/main/CHANGELOG.md"
	crunSource       = "https://github.com/containers/crun/security/advisories/"
	crunChanges      = "https://github.com/containers/crun/blob/main/NEWS"
	criuSource       = "https://github.com/checkpoint-restore/criu/security/advisories/"
	nvidiaSource     = "https://github.com/NVIDIA/product-security/tree/main/2026/"
)

// Table lists the advisories by component, the oldest first.
var Table = []Advisory{
	{Component: Containerd, ID: "CVE-2026-46680", Class: Escape, Effect: "an image's USER becomes root",
		Fixed: []string{"1.7.32", "2.0.9", "2.1.8", "2.2.4", "2.3.1"}, Source: containerdSource + "GHSA-fqw6-gf59-qr4w"},
	{Component: Containerd, ID: "CVE-2026-53488", Class: Escape, Effect: "an image's label runs a command on the host as root",
		Fixed: []string{"1.7.33", "2.0.10", "2.1.9", "2.2.5", "2.3.2"}, Source: containerdSource + "GHSA-xhf5-7wjv-pqxp"},
	{Component: Containerd, ID: "CVE-2026-47262", Class: Denial, Effect: "an image exhausts the daemon's memory",
		Fixed: []string{"1.7.33", "2.0.10", "2.1.9", "2.2.5", "2.3.2"}, Source: containerdSource + "GHSA-jpcc-p29g-p8mq"},
	{Component: Containerd, ID: "CVE-2026-53492", Class: Restore, Effect: "a checkpoint image chooses CDI devices, GPUs too",
		Since: "2.1.0", Fixed: []string{"2.1.9", "2.2.5", "2.3.2"}, Source: containerdSource + "GHSA-33vj-92qq-66hc"},
	{Component: Containerd, ID: "CVE-2026-53489", Class: Restore, Effect: "a link in a checkpoint image reads the host's files",
		Since: "2.1.0", Fixed: []string{"2.1.9", "2.2.5", "2.3.2"}, Source: containerdSource + "GHSA-rgh6-rfwx-v388"},
	{Component: Containerd, ID: "CVE-2026-50195", Class: Restore, Effect: "a checkpoint image replaces other images' tags",
		Since: "2.1.0", Fixed: []string{"2.1.9", "2.2.5", "2.3.2"}, Source: containerdSource + "GHSA-cvxm-645q-p574"},
	{Component: Containerd, ID: "CVE-2026-95837", Class: Unknown,
		Fixed: []string{"2.2.7", "2.3.4"}, Source: "https://github.com/containerd/containerd/security/advisories"},
	{Component: Containerd, ID: "CVE-2026-53495", Class: Disclosure, Effect: "an image sends the registry's credentials to another server",
		Fixed: []string{"1.7.35", "2.0.12", "2.2.8", "2.3.5"}, Source: containerdSource + "GHSA-7jxh-36q5-gcqv"},
	{Component: Containerd, ID: "CVE-2026-53493", Class: Denial, Effect: "an image with endless references exhausts the daemon's memory",
		Fixed: []string{"1.7.36", "2.0.13", "2.2.9", "2.3.6", "2.4.1"}, Source: containerdSource + "GHSA-pg57-6jwg-q645"},
	{Component: Containerd, ID: "CVE-2026-95839", Class: Denial, Effect: "an image or its registry ends the daemon or fills the disk",
		Fixed: []string{"2.3.7", "2.4.2"}, Source: containerdSource + "GHSA-vwhp-8p66-mq4f"},

	{Component: Runc, ID: "CVE-2024-21626", Class: Escape, Effect: "an image's working directory is the host's",
		Fixed: []string{"1.1.12"}, Source: runcSource + "GHSA-xr7r-f8xq-vfvv"},
	{Component: Runc, ID: "CVE-2025-31133", Class: Escape, Effect: "masked paths become writable files of the host",
		Fixed: []string{"1.2.8", "1.3.3", "1.4.0"}, Source: runcSource + "GHSA-9493-h29p-rfm2"},
	{Component: Runc, ID: "CVE-2025-52565", Class: Escape, Effect: "/dev/console becomes a file of the host",
		Fixed: []string{"1.2.8", "1.3.3", "1.4.0"}, Source: runcSource + "GHSA-qw9x-cqr3-wc7r"},
	{Component: Runc, ID: "CVE-2025-52881", Class: Escape, Effect: "writes to /proc reach other files of the host",
		Fixed: []string{"1.2.8", "1.3.3", "1.4.0"}, Source: runcSource + "GHSA-cgrx-mc8f-2prm"},
	{Component: Runc, ID: "CVE-2026-41579", Class: Escape, Effect: "an image's link at /dev leads device nodes to the host",
		Fixed: []string{"1.3.6", "1.4.3", "1.5.0-rc.3", "1.6.0-rc.1"}, Source: runcSource + "GHSA-xjvp-4fhw-gc47"},
	{Component: Runc, ID: "runc pull request 5403", Class: Crash, Effect: "setting device rules on cgroup v2 corrupts runc's memory",
		Kernels: []string{"6.17", "7.2"}, Fixed: []string{"1.4.4", "1.5.2", "1.6.0-rc.1"}, Source: runcChanges},
	{Component: Runc, ID: "CVE-2026-119101", Class: Restore, Effect: "restoring an image's container mounts a directory of the host",
		Fixed: []string{"1.3.7", "1.4.4", "1.5.3", "1.6.0-rc.2"}, Source: runcSource + "GHSA-g2c3-j8g3-7gpw"},

	{Component: Crun, ID: "CVE-2026-47766", Class: Escape, Effect: "an image's link at /dev leads device nodes to the host",
		Fixed: []string{"1.28"}, Source: crunChanges},
	{Component: Crun, ID: "CVE-2026-115520", Class: Restore, Effect: "restoring an image's container mounts a directory of the host",
		Fixed: []string{"1.31"}, Source: crunSource + "GHSA-2mxx-58qc-p466"},
	{Component: Crun, ID: "CVE-2026-115521", Class: Escape, Effect: "a read-only remount is redirected",
		Fixed: []string{"1.31"}, Source: crunChanges},

	{Component: CRIU, ID: "CVE-2026-119614", Class: Restore, Effect: "restoring an image's container mounts a directory of the host",
		Fixed: []string{"4.3.1"}, Source: criuSource + "GHSA-7ww7-53q2-wrwx"},

	{Component: Driver, ID: "CVE-2026-24187 and others", Class: Escape, Effect: "a process with a GPU runs code in the kernel",
		Fixed: []string{"535.309.01", "580.159.03", "595.71.05"}, Source: nvidiaSource + "5821"},
}
