package request

import (
	"slices"
	"strings"
	"testing"
)

func TestRightsOverMIG(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		want []string
		err  string
	}{
		{"unset asks for no right", nil, nil, ""},
		{"empty asks for no right", []string{"NVIDIA_MIG_CONFIG_DEVICES=", "NVIDIA_MIG_MONITOR_DEVICES="}, nil, ""},
		{"to configure MIG", []string{"NVIDIA_MIG_CONFIG_DEVICES=all"}, []string{"config"}, ""},
		{"to watch all MIG devices", []string{"NVIDIA_MIG_MONITOR_DEVICES=all"}, []string{"monitor"}, ""},
		{"both rights", []string{"NVIDIA_MIG_MONITOR_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all"}, []string{"config", "monitor"}, ""},
		{"another value than all is refused", []string{"NVIDIA_MIG_CONFIG_DEVICES=0"}, nil, `NVIDIA_MIG_CONFIG_DEVICES="0": only "all" has a meaning`},
		{"words are case-sensitive here too", []string{"NVIDIA_MIG_MONITOR_DEVICES=ALL"}, nil, `NVIDIA_MIG_MONITOR_DEVICES="ALL": only "all" has a meaning`},
		{"without a GPU no right counts", []string{"NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_MIG_CONFIG_DEVICES=all"}, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for how, read := range map[string]func([]string) (Request, error){
				"environment": func(env []string) (Request, error) {
					return FromEnv(append([]string{"NVIDIA_VISIBLE_DEVICES=all"}, env...), stock)
				},
				"mounts": func(env []string) (Request, error) {
					ids := []string{"all"}
					if slices.Contains(env, "NVIDIA_VISIBLE_DEVICES=none") {
						ids = []string{"none"}
					}
					return WithDeviceList(List{GPUs: ids}, env, stock)
				},
			} {
				r, err := read(tc.env)
				if tc.err != "" {
					if err == nil || !strings.Contains(err.Error(), tc.err) {
						t.Errorf("%s: error %v, want one with %s", how, err, tc.err)
					}
					continue
				}
				if err != nil || !slices.Equal(r.MIG, tc.want) || len(r.MIGVariables()) != len(tc.want) {
					t.Errorf("%s: %q by %q, %v, want %q", how, r.MIG, r.MIGVariables(), err, tc.want)
				}
			}
		})
	}
}
