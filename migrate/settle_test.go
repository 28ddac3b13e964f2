package migrate

import (
	"reflect"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// settle sets what edited.toml says in sections of the configuration that this build
// may have or not.
func settle(c *config.Config) {
	for _, f := range []struct {
		section any
		field   string
		value   []string
	}{
		{&c.Policy, "SwarmResources", []string{"DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_FAST"}},
		{&c.Host, "CDISpecDirs", []string{"/opt/cdi"}},
	} {
		if v := reflect.ValueOf(f.section).Elem().FieldByName(f.field); v.IsValid() {
			v.Set(reflect.ValueOf(f.value))
		}
	}
}
