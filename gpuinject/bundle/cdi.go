package bundle

import "github.com/opencontainers/runtime-spec/specs-go"

// CDIRequest asks what CDI specifications of this host say of devices. The answer is
// found in a process of its own (package cdispec): the library that reads them stays
// out of the shim.
type CDIRequest struct {
	// Dirs hold the specifications, a later one before an earlier; Names are CDI names.
	Dirs, Names []string
	// UID and GID are the container's: they own nodes of which a specification does not
	// say whose they are.
	UID, GID uint32
	// UserNamespace is set where the container has one.
	UserNamespace bool
}

// CDIEdits are what the specifications add to a container.
type CDIEdits struct {
	// Unknown says, in words, which device no specification has. Nothing else is set
	// then.
	Unknown        string                    `json:"unknown,omitempty"`
	Env            []string                  `json:"env,omitempty"`
	Devices        []specs.LinuxDevice       `json:"devices,omitempty"`
	Rules          []specs.LinuxDeviceCgroup `json:"rules,omitempty"`
	Mounts         []specs.Mount             `json:"mounts,omitempty"`
	Hooks          *specs.Hooks              `json:"hooks,omitempty"`
	AdditionalGids []uint32                  `json:"additional_gids,omitempty"`
}
